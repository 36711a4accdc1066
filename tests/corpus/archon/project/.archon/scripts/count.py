import os

print(len(os.environ["LW_SETUP_OUTPUT"].split()))
