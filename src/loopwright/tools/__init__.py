"""Tools: what an agent may do in its workspace, built in or by MCP servers.

`workshop.Workshop` lives as long as the process and makes a `toolbox.Toolbox` for an agent:
`specs` for the model, `resolve` for what the model wants, `run` for what is to be done. `tree`
keeps files inside the workspace, `commanding` judges commands, `gate` keeps the limits. Only
`wire` knows the protocol library; it is loaded when the first server is needed.

May import: ports, agents and below; is named by app alone. Start reading at `toolbox.py`.
"""
