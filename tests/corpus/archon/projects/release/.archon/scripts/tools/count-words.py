import os
import sys

print(len(os.environ["INPUTS_TEXT"].split()), file=sys.stdout)
