import os

print(os.environ["INPUTS_ISSUE"], "delivered:", os.environ["INPUTS_VERDICT"])
