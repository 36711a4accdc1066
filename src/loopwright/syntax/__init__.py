"""Syntax: what people write, read with positions and refused with reasons.

`read` turns bytes (YAML 1.2 or JSON) into a plain value that remembers where each part stands;
`validate` holds that value against a pydantic model. Problems are values (`Diagnostic`), never
exceptions, and every one names file, line, column and the fix.

May import: errors, model, kernel (it needs none of them). Start at `reading.py`, then
`validation.py`.
"""
