"""Parts of a native definition that are judged as a whole."""

import pytest

from tests.dialects.reading import lowered


@pytest.mark.parametrize(
    ("schema", "code"),
    [
        pytest.param("{type: bogus}", "bad-schema", id="an unknown type"),
        pytest.param("{properties: 3}", "bad-schema", id="no mapping"),
        pytest.param("{type: string, pattern: '(?<=a)b'}", "regex-feature", id="a pattern"),
        pytest.param(
            "{patternProperties: {'a{1000}{1000}': {}}}", "regex-too-big", id="a name's pattern"
        ),
        pytest.param("{items: [{pattern: '('}]}", "bad-regex", id="a pattern deep inside"),
    ],
)
def test_schemas_are_checked_when_they_are_read(schema: str, code: str) -> None:
    """A schema that cannot be used, or whose patterns cannot be matched in linear time."""
    text = (
        f"name: s\nagent: command:cat\ngoal: g\nrepeat: {{max: 1, until: {{schema: {schema}}}}}\n"
    )
    plan, problems = lowered(text)
    assert plan is None
    assert [problem.code for problem in problems] == [code]
