print("$setup.output")
