"""Syntax: read definitions with positions, and report problems at their line and column.

`read` turns bytes (YAML 1.2 or JSON) into a plain value that remembers the position of each
part; `validate` checks that value against a pydantic model. Problems are values (`Diagnostic`),
never exceptions, and every one names file, line, column and the fix.

May import: errors, model, kernel (it needs neither model nor kernel). Start at `readers.py`,
then `validation.py`.
"""
