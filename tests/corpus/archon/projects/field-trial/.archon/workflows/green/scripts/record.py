import json
import os

names = ("SLUG", "PARTS", "KIND")
print(json.dumps({"text": ":".join(os.environ[f"INPUTS_{name}"] for name in names)}))
