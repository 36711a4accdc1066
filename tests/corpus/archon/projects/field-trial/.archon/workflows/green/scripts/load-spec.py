import json
import os
import sys

declared = os.environ["INPUTS_DECLARED"]
if not declared:
    print("no spec is given", file=sys.stderr)
    sys.exit(1)
print(json.dumps({"slug": declared.split("/")[-1], "parts": 3}))
