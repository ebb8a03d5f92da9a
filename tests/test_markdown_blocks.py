"""Markdown as blocks and rows: what is drawn at a width, what is copied of it, what stays as it was."""

from __future__ import annotations

import random

import pytest
from rich.cells import cell_len

from edgespec_tui.widgets.drawn_rows import Listing, Table, folds
from edgespec_tui.widgets.markdown_blocks import Block, blocks, gap_above, same

TEXT = """# Head

Words that go on, **bold** and `code`.

- one
- two, which is too long for a row
  - inner
1. first
2. second

> quoted
>
> twice

| a | b |
|---|--:|
| x | 1 |

---
```python
if x:
    y = "a line that is too long"
```
"""


def drawn(found: list[Block], width: int) -> list[str]:
    return [row.text.plain.rstrip() for block in found for row in (*gap_above(block), *block.rows(width))]


def test_a_text_is_drawn_at_a_width() -> None:
    assert drawn(blocks(TEXT), 24) == [
        "Head",
        "",
        "Words that go on, bold",
        "and code.",
        "",
        "• one",
        "• two, which is too long",
        "  for a row",
        "  ◦ inner",
        "",
        "1. first",
        "2. second",
        "",
        "▌ quoted",
        "▌",
        "▌ twice",
        "",
        "a │ b",
        "──┼──",
        "x │ 1",
        "",
        "─" * 24,
        "",
        "python  copy: c or click",
        "if x:",
        '    y = "a line that is',
        'too long"',
    ]


@pytest.mark.parametrize("width", [1, 2, 5, 40, 400])
def test_no_row_is_wider_than_the_screen_where_words_can_be_broken(width: int) -> None:
    for block in blocks(TEXT):
        if not isinstance(block, Table) and not getattr(block, "rest", "") or width > 10:
            assert all(row.text.cell_length <= max(width, 2) for row in block.rows(width)), block


def test_a_wide_table_is_wrapped_in_its_widest_columns_first() -> None:
    found = blocks("| name | what it is |\n|---|---|\n| x | a long text in a cell |\n")
    assert drawn(found, 20) == [
        "name │ what it is",
        "─────┼──────────────",
        "x    │ a long text",
        "     │ in a cell",
    ]


def test_links_are_named_html_is_text_and_nothing_can_be_clicked() -> None:
    found = blocks(
        "[here](https://x.org) <b>no</b> ![a dog](d.png)\\\nnext<br>line &amp; <script>\n\n<div>x</div>"
    )
    assert drawn(found, 80) == [
        "here <b>no</b> [image: a dog]",
        "next",
        "line & <script>",
        "",
        "<div>x</div>",
    ]
    assert all(
        "@click" not in str(span.style) for block in found for text in block.texts for span in text.spans
    )


def test_loose_lists_keep_their_empty_lines_and_numbers_go_on_where_they_begin() -> None:
    assert drawn(blocks("- one\n\n- two\n"), 40) == ["• one", "", "• two"]
    assert drawn(blocks("7. seven\n8. eight\n"), 40) == ["7. seven", "8. eight"]
    assert drawn(blocks("-\n- two"), 40) == ["•", "• two"]


def test_a_list_of_tasks_has_boxes() -> None:
    """They were shown as they are written."""
    told = drawn(blocks("- [ ] one\n- [x] two **so**\n  - [X] three\n- [ ]\n- [y] four\n\n1. [ ] five"), 40)
    assert told == ["☐ one", "☑ two so", "  ☑ three", "• [ ]", "• [y] four", "", "1. [ ] five"]


def test_code_within_a_list_stands_under_its_item_and_is_whole() -> None:
    item, code, other = blocks("- do:\n  ```sh\n  ls\n  cd\n  ```\n- then")
    assert isinstance(code, Listing) and (code.code, code.language, code.indent) == ("ls\ncd", "sh", 2)
    assert drawn([item, other], 40) == ["• do:", "• then"]


def test_a_part_of_a_text_begins_as_its_place_asks() -> None:
    assert drawn(blocks("more", gap=True), 40) == ["", "more"]
    assert drawn(blocks("```py\nx = 1\n", continued=True), 40) == ["x = 1"]


def test_blocks_are_the_same_where_they_look_the_same() -> None:
    before, after = blocks("One.\n\nTwo **b**."), blocks("One.\n\nTwo b.")
    assert same(before[0], after[0]) and not same(before[1], after[1])
    assert not same(before[0], blocks("- One.")[0])


@pytest.mark.parametrize("cut", [0, *range(7, len(TEXT), 7)])
def test_half_a_text_is_drawn_too(cut: int) -> None:
    """An answer is drawn while it comes, so every beginning of a text is one."""
    assert drawn(blocks(TEXT[:cut]), 30)[:1] == (["Head"] if cut else [])


def test_code_is_folded_at_words_and_copied_as_it_was_written() -> None:
    """It was cut in the middle of words."""
    (listing,) = blocks("```\nlongest = max(lines, key=len)\n    x = aaaaaaaaaaaaaaaaaaaaaaaa\n```")
    rows = [row for row in listing.rows(20)][1:]
    assert [row.text.plain for row in rows] == [
        "longest = max(lines,",
        "key=len)",
        "    x = aaaaaaaaaaaa",
        "aaaaaaaaaaaa",
    ]
    assert [row.joins for row in rows] == [None, " ", None, ""]


@pytest.mark.parametrize("width", [1, 2, 3, 7, 20])
def test_folds_lose_nothing(width: int) -> None:
    rng = random.Random(width)
    for _ in range(200):
        text = "".join(rng.choice("ab  漢") for _ in range(rng.randrange(0, 60)))
        joined = "".join((joins or "") + text[start:end] for start, end, joins in folds(text, width))
        assert joined == text
        assert all(cell_len(text[start:end]) <= max(2, width) for start, end, _ in folds(text, width))
