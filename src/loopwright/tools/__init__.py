"""Tools: what an agent can do in its workspace, built in or by MCP servers.

`toolbox.Workshop` lives as long as the process and creates a `toolbox.Toolbox` for an agent:
`specs` for the model, `resolve` for requested calls, `run` to execute them. `workspace_tree` keeps
file access inside the workspace, `shell` checks commands, `builtin` enforces the limits. Only `mcp`
uses the protocol library; it is imported when the first server is needed.

May import: ports, agents and below; only `operations` imports it. Start reading at `toolbox.py`.
"""
