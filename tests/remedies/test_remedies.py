"""The catalogue of source changes: what it finds, what it leaves alone, how edits are made."""

import ast

import pytest

from stayfinite import UsageError, remedies
from stayfinite.remedies.rows import without_bad_rows


def changed(text, name, line=None):
    """The text after the change of this name on its last line, or on another."""
    source = remedies.Source(text)
    found = remedies.at(source, line or text.rstrip("\n").count("\n") + 1, [name])
    return remedies.apply(text, found[:1])[0] if found else None


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("log_space", "torch.log(torch.softmax(x, dim=1))", "torch.log_softmax(x, dim=1)"),
        ("log_space", "x.softmax(-1).log()", "x.log_softmax(-1)"),
        ("log_space", "(a + b).softmax(-1).log()", "(a + b).log_softmax(-1)"),
        ("log_space", "torch.log(x.sigmoid())", "torch.nn.functional.logsigmoid(x)"),
        (
            "log_space",
            "(1 - torch.sigmoid(a + b)).log()",
            "torch.nn.functional.logsigmoid(-(a + b))",
        ),
        ("logsumexp", "x.exp().sum(1, keepdim=True).log()", "torch.logsumexp(x, 1, keepdim=True)"),
        ("softmax", "x.exp() / x.exp().sum(1, keepdim=True)", "torch.softmax(x, dim=1)"),
        ("floor_count", "x / (a.sum() + b.sum())", "x / (a.sum() + b.sum()).clamp(min=1)"),
        ("floor_log", "p.log()", "p.clamp(min=torch.finfo(p.dtype).tiny).log()"),
        ("zero_infinity", "torch.nn.CTCLoss()", "torch.nn.CTCLoss(zero_infinity=True)"),
        (
            "zero_infinity",
            "torch.nn.CTCLoss(zero_infinity=False)",
            "torch.nn.CTCLoss(zero_infinity=True)",
        ),
        (
            "floor_norm",
            "x / x.norm(dim=1)",
            "x / x.norm(dim=1).clamp(min=torch.finfo(x.dtype).eps)",
        ),
        (
            "floor_distribution",
            "Categorical(probs=p * legal)",
            "Categorical(probs=(p * legal).clamp(min=1e-6))",
        ),
        (
            "floor_kl_target",
            "torch.nn.functional.kl_div(a, b, reduction='sum')",
            "torch.nn.functional.kl_div(a, b.clamp(min=torch.finfo(b.dtype).tiny), reduction='sum')",
        ),
        (
            "bound_log_rate",
            "torch.nn.PoissonNLLLoss()(model(x), y)",
            "torch.nn.PoissonNLLLoss()(model(x).clamp(max=20), y)",
        ),
        ("log_bessel", "k.i0().log()", "(torch.special.i0e(k).log() + (k).abs())"),
        ("floor_distribution", "StudentT(n, m, s)", "StudentT(n, m, s.clamp(min=1e-6))"),
        ("inside_both_ends", "d.log_prob(a)", "d.log_prob(a.clamp(-1 + 1e-6, 1 - 1e-6))"),
        (
            "jitter",
            "torch.linalg.qr(h)",
            "torch.linalg.qr(h + 1e-6 * torch.eye(*h.shape[-2:]).to(h))",
        ),
        (
            "loss_or_zero",
            "torch.nn.functional.cross_entropy(x, t, weight=w)",
            'torch.nn.functional.cross_entropy(x, t, weight=w, reduction="sum") / '
            "w[t].sum().clamp(min=1e-6)",
        ),
    ],
)
def test_a_change_is_made_as_text(name, before, after):
    assert (
        changed(f"import torch\ny = {before}  # why\n", name)
        == f"import torch\ny = {after}  # why\n"
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log_space", "y = torch.log(x)"),
        ("log_space", "y = torch.log(torch.softmax(x))"),  # without a dimension
        ("log_space", "if torch.softmax(net(x), 1).sum() > 0: y = torch.log(p)"),
        ("log_space", "p = torch.softmax(x, 1)\nx = x + 1\ny = torch.log(p)"),  # x has changed
        ("log_space", "p = torch.softmax(x, 1)\nx.add_(1)\ny = torch.log(p)"),
        ("log_space", "p = torch.softmax(x, 1)\np = p + 1\ny = torch.log(p)"),
        ("log_space", "if c:\n    p = torch.softmax(x, 1)\ny = torch.log(p)"),
        ("logsumexp", "y = x.exp().sum().log()"),  # without a dimension
        ("softmax", "y = x.exp() / x.exp().sum(1)"),  # another shape
        ("softmax", "y = x.exp() / z.exp().sum(1, keepdim=True)"),
        ("softplus", "y = torch.log(2 + torch.exp(x))"),
        ("softplus", "e = torch.exp(x)\nx.add_(1)\ny = torch.log(1 + e)"),  # x has changed
        ("softplus", "e = torch.exp(net(x))\ny = torch.log(1 + e)"),  # net would be called twice
        ("logaddexp", "t = net(x).exp() + z.exp()\ny = torch.log(t)"),
        ("sigmoid", "y = x.exp() / (1 + z.exp())"),
        ("tanh", "y = (x.exp() - z.exp()) / (x.exp() + z.exp())"),
        ("floor_root", "y = torch.sqrt(f(x))"),  # a dtype that is not known
        ("isfinite", "y = torch.isnan(x).sum()"),
    ],
)
def test_what_is_not_certain_is_left_alone(name, text):
    assert changed(f"import torch\n{text}\n", name) is None


def test_a_name_that_is_not_imported_is_not_used():
    text = "from torch import softmax\ny = x.exp().sum(1).log()\n"
    assert changed(text, "logsumexp") is None


def test_every_change_leaves_a_text_that_parses():
    text = (
        "import torch\n"
        "def loss(x, é):\n"
        "    return (torch.log(\n"
        "        torch.softmax(é, dim=1)  # a comment\n"
        "    ) * x).sum()\n"
    )
    made = changed(text, "log_space", line=3)
    ast.parse(made)
    assert "torch.log_softmax(é, dim=1)" in made


def test_overlapping_changes_wait():
    one = remedies.Remedy(name="a", title="", why="", line=1, edits=(remedies.Edit(0, 4, "x"),))
    two = remedies.Remedy(name="b", title="", why="", line=1, edits=(remedies.Edit(2, 6, "y"),))
    text, done = remedies.apply("abcdefgh", [two, one])
    assert (text, done) == ("xefgh", (one,))


def test_a_diff_can_be_applied():
    shown = remedies.unified_diff("train.py", "a\nb\n", "a\nc")
    assert shown == (
        "--- a/train.py\n+++ b/train.py\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n\\ No newline at end of file\n"
    )
    assert remedies.unified_diff("train.py", "a\n", "a\n") == ""


def test_an_unknown_name_lists_the_known_ones():
    source = remedies.Source("x = 1")
    with pytest.raises(
        UsageError,
        match="unknown remedy 'nothing'; known: above_minus_one, above_one, above_support",
    ):
        remedies.find(source, source.tree.body[0], "nothing")


def test_a_name_that_is_taken_is_rejected():
    with pytest.raises(UsageError, match="remedy 'log_space' is already in the catalogue"):
        remedies.pattern("log_space", "", "")


def test_every_change_says_what_and_why():
    for kind in remedies.CATALOGUE.values():
        assert kind.title and kind.why and kind.title[0].islower()


@pytest.mark.parametrize(
    ("body", "kept"), [("use(x)", "x = x[keep]"), ("use(x, _)", "x, _ = x[keep], _[keep]")]
)
def test_an_unused_part_of_the_batch_keeps_its_rows(body, kept):
    source = remedies.Source(f"import torch\nfor i, (x, _) in enumerate(loader):\n    {body}\n")
    made = without_bad_rows(source, 2, None, [0], 2)
    assert f"\n    {kept}\n" in remedies.apply(source.text, [made])[0]


def test_the_count_of_a_loop_is_no_part_of_the_batch():
    source = remedies.Source("import torch\nfor i, data in enumerate(loader, 0):\n    use(data)\n")
    made = without_bad_rows(source, 2, None, [0], 2)
    text, _ = remedies.apply(source.text, [made])
    assert "isfinite(data[0])" in text and "data = [part[keep] for part in data]" in text
