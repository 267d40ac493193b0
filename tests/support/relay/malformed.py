"""Malformed texts, with what the error must say; `construct` where it is refused on purpose.

A case is (name, text, line, a piece of the message).  Line 0: any line.
"""

from __future__ import annotations

from tests.support.relay.texts import HEADER, fixture_text, main, with_metadata

_GNF = fixture_text("smallnet_grad_gnf")
_CUTLASS = fixture_text("smallnet_grad_nhwc_cutlass")
_ARRAY = "P6G0lvBAXt0AAAAAAAAAAAEAAAAAAAAAAQAAAAAgAQAEAAAAAAAAABAAAAAAAAAAAgAAAAgAAAAQAAAAEAAAAA=="

Case = tuple[str, str, int, str]


def _meta(nodes: str, arrays: str = "[]", root: str = "1") -> str:
    return with_metadata("%x", nodes, arrays, root)


def _array(text: str) -> str:
    nodes = (
        '{"type_key": "Map", "keys": ["relay.Constant"], "data": [2]},'
        '{"type_key": "Array", "data": [3]},'
        '{"type_key": "relay.Constant", "attrs": {"data": "0"}}'
    )
    return _meta(nodes, f'["{text}"]')


def _object(node: str) -> str:
    nodes = (
        '{"type_key": "Map", "keys": ["relay.attrs.InitOpAttrs"], "data": [2]},'
        '{"type_key": "Array", "data": [3]},'
        '{"type_key": "relay.attrs.InitOpAttrs", "attrs": {"shape": "4", "dtype": ""}},' + node
    )
    return _meta(nodes)


def _nested(inner: str, opening: str, closing: str) -> str:
    return main(opening * 10_000 + inner + closing * 10_000)


_TRUNCATED: list[Case] = [
    (f"truncated-{len(text)}-at-{cut}", text[:cut], 0, "")
    for text, cuts in ((_GNF, (10, 30, 60, 500, 900, 1400, 2400, 3100)), (_CUTLASS, (6000, 9000)))
    for cut in cuts
]

_BODIES: list[Case] = [
    (name, main(body), line, piece)
    for name, body, line, piece in (
        ("empty-body", "", 4, "`}`"),
        ("unclosed-call", "nn.relu(%x", 4, "`(` of line 3"),
        ("unclosed-tuple", "(%x, %x", 4, "is open"),
        ("unopened", "%x)", 3, "`)` where the `{`"),
        ("wrong-bracket", "nn.relu(%x]", 3, "`]` where the `(`"),
        ("string-open", 'f(%x, a="b)', 3, "closing quote"),
        ("string-newline", 'f(%x, a="b\nc")', 3, "closing quote"),
        ("comment-open", "f(%x) /* ty=float32", 3, "comment"),
        ("unbound", "%y", 3, "%y is not bound"),
        ("unbound-graph", "%0", 3, "%0 is not bound"),
        ("unbound-later", "%0 = f(%1); %1 = f(%x); %0", 3, "%1 is not bound"),
        ("self", "%0 = f(%0); %0", 3, "%0 is not bound"),
        ("twice", "%0 = f(%x); %0 = g(%x); %0", 3, "bound twice"),
        ("let-self", "let %f = f(%f); %f", 3, "%f is not bound"),
        ("out-of-scope", "%0 = (let %y = %x; %y); %y", 3, "%y is not bound"),
        (
            "needs-ended-scope",
            "%1 = (let %y = f(%x); %0 = g(%y); (%0, %0)); (%1, %0)",
            3,
            "whose scope has ended",
        ),
        ("branch-scope", "if (True) { let %y = %x; %y } else { %y }", 3, "%y is not bound"),
        ("param-out", "%0 = fn (%p) { %p }; %p", 3, "%p is not bound"),
        ("no-global", "@other(%x)", 3, "@other is not defined"),
        ("no-semicolon", "%0 = f(%x) %0", 3, "`;`"),
        ("let-no-semicolon", "let %y = %x %y", 3, "`;`"),
        ("let-no-value", "let %y; %y", 3, "`=`"),
        ("let-graph", "let %0 = %x; %0", 3, "a variable"),
        ("let-constant", "let 1 = %x; %x", 3, "a variable"),
        ("ends-with-binding", "%0 = f(%x);", 4, "`}`"),
        ("bare-name", "nn.rely", 3, "nn.rely is no operator"),
        ("infix-end", "%x +", 4, "`}`"),
        ("infix-twice", "%x + * %x", 3, "`*`"),
        ("bare-string", '"text"', 3, "can't stand here"),
        ("bare-none", "None", 3, "None is no constructor"),
        ("unknown-sign", "%x $ %x", 3, "`$`"),
        ("percent", "%", 3, "`%`"),
        ("at", "@", 3, "`@`"),
        ("double-comma", "f(%x,, %x)", 3, "`,`"),
        ("leading-comma", "(, %x)", 3, "`,`"),
        ("attr-no-value", "f(%x, a=)", 3, "`)`"),
        ("attr-variable", "f(%x, a=%x)", 3, "`%x`"),
        ("attr-twice", "f(%x, a=1, a=2)", 3, "given twice"),
        ("attr-then-argument", "f(%x, a=1, %x)", 3, "after the call's attributes"),
        ("attr-list-open", "f(%x, a=[1, 2)", 3, "`[`"),
        ("attr-list-of-variables", "f(%x, a=[%x])", 3, "`%x`"),
        ("fraction-suffix", "0.5", 3, "needs a suffix: 0.5f"),
        ("integer-width", "1i8", 3, "unknown suffix i8"),
        ("float-width", "1f8", 3, "unknown suffix f8"),
        ("bfloat-width", "1f128", 3, "unknown suffix f128"),
        ("integer-range", "40000i16", 3, "int16's range"),
        ("integer-range-32", "3000000000i32", 3, "int32's range"),
        ("integer-digits", "1" * 5000, 3, "out of range"),
        ("float-range", "1e999f", 3, "float32's range"),
        ("half-range", "70000f16", 3, "float16's range"),
        ("half-range-rounded", "65505f16", 3, "float16's range"),
        ("half-range-negative", "-65505f16", 3, "float16's range"),
        ("single-range-rounded", "3.40282347e+38f", 3, "float32's range"),
        ("two-dots", "1.2.3f", 3, "needs a suffix"),
        ("projection-digits", "%x." + "1" * 50, 3, "out of range"),
        ("projection-name", "f(%x).first", 3, "`.first`"),
        ("escape", 'f(%x, a="\\q")', 3, "unknown escape"),
        ("if-no-else", "if (True) { %x }", 4, "`else`"),
        ("if-no-condition", "if { %x } else { %x }", 3, "`{`"),
        ("fn-no-body", "fn (%y)", 4, "`}`"),
        ("fn-same-params", "fn (%y, %y) { %y }", 3, "two parameters are called %y"),
        ("fn-attr-then-param", "fn (Primitive=1, %y) { %y }", 3, "after attributes"),
        ("fn-constant-param", "fn (1) { 1 }", 3, "`1`"),
        ("meta-missing", "meta[relay.Constant][0]", 3, "none of that type"),
        ("meta-no-index", "meta[relay.Constant]", 3, "reference to metadata"),
        ("meta-attr-missing", "f(%x, a=meta[Span][0])", 3, "none of that type"),
        ("type-of-constant", "1f /* ty=int32 */", 3, "another's type"),
        ("shape-of-constant", "1f /* ty=Tensor[(1), float32] */", 3, "another's type"),
        ("comment-type", "f(%x) /* ty=Tensor[(1, 2, float32] */", 3, "in a type comment"),
        ("comment-dtype", "f(%x) /* ty=flout32 */", 3, "unknown dtype flout32"),
        ("comment-empty", "f(%x) /* ty= */", 3, "in a type comment"),
        ("comment-span", "f(%x) /* ty=float32 span=here */", 3, "a type comment is"),
        ("comment-deep", f"f(%x) /* ty={'(' * 10_000}{')' * 10_000} */", 3, "nests deeper"),
        ("comment-deep-fn", f"f(%x) /* ty={'fn () -> ' * 10_000}float32 */", 3, "nests deeper"),
    )
]

_TYPES: list[Case] = [
    (f"type-{i}", main("%x", f"%x: {type_}"), 2, piece)
    for i, (type_, piece) in enumerate(
        (
            ("Tensor", "malformed tensor type"),
            ("Tensor[2, float32]", "malformed tensor type"),
            ("Tensor[(2, 3)]", "malformed tensor type"),
            ("Tensor[(2, 3), 32]", "malformed tensor type"),
            ("Tensor[(2, -3), float32]", "not -3"),
            ("Tensor[(2, x), float32]", "not x"),
            ("Tensor[(2,, 3), float32]", "not nothing"),
            ("Tensor[(99999999999999999999), float32]", "out of range"),
            ("Tensor[(2, 3), float31]", "unknown dtype float31"),
            ("floaty", "unknown dtype floaty"),
            ("(float32", "`(`"),
            ("fn (float32) float32", "`->`"),
            ("fn (float32) ->", "`)`"),
            ("", "`)`"),
            ("(" * 500 + "float32," + ")" * 500, "nests deeper"),
        )
    )
]

_MODULES: list[Case] = [
    ("nothing", "", 1, "begins with #[version"),
    ("no-version", "def @main(%x) { %x }", 1, "begins with #[version"),
    ("other-version", '#[version = "0.0.4"]\ndef @main(%x) { %x }', 1, "version 0.0.4"),
    ("version-open", '#[version = "0.0.5"', 1, "begins with #[version"),
    ("bare-expression", HEADER + "1f", 2, "`1f`"),
    ("def-no-name", HEADER + "def (%x) { %x }", 2, "a global function"),
    ("def-twice", HEADER + "def @f(%x) { %x }\ndef @f(%x) { %x }", 3, "defined twice"),
    ("def-same-params", HEADER + "def @f(%x, %x) { %x }", 2, "two parameters"),
    ("def-no-body", HEADER + "def @f(%x)", 2, "the text ends"),
    ("after-end", main("%x") + "%x", 5, "`%x`"),
    ("no-text", "\0\x01\x02", 1, "begins with #[version"),
    ("surrogate", main("\ud800"), 3, "can't stand here"),
]

_METADATA: list[Case] = [
    ("json", main("%x") + "#[metadata]\n{", 6, "bad metadata"),
    ("json-empty", main("%x") + "#[metadata]", 5, "bad metadata"),
    ("json-list", main("%x") + "#[metadata]\n[]", 5, "not a JSON object"),
    ("json-deep", main("%x") + "#[metadata]\n" + "[" * 100_000, 5, "bad metadata"),
    ("json-number", _meta("", root="1" * 10_000), 6, "bad metadata"),
    ("root-range", _meta('{"type_key": "Map"}', root="9"), 6, "no node 9"),
    ("root-type", _meta('{"type_key": "Array"}'), 6, "no Map"),
    ("root-unpaired", _meta('{"type_key": "Map", "keys": ["a"], "data": []}'), 6, "don't pair"),
    ("root-keys", _meta('{"type_key": "Map", "keys": [1], "data": [0]}'), 6, "no key"),
    ("node-type", _meta("1"), 6, "no object"),
    ("unknown-attrs", _GNF.replace("InitOpAttrs", "OtherAttrs"), 0, "can't be read"),
    ("base64", _GNF.replace("P6G0", "P6G*"), 0, "not base64"),
    ("base64-short", _array("P6G0"), 6, "within its header"),
    ("base64-mark", _array("AAAA" + _ARRAY[4:]), 6, "TVM's mark"),
    ("base64-cut", _array(_ARRAY[:-8]), 6, "an array of"),
    ("base64-missing", _GNF.replace(_ARRAY, ""), 0, "within its header"),
    ("constant-type", _GNF.replace('"dtype": "int32", \n        "shape"',
                                   '"dtype": "int64", \n        "shape"'), 0, "another's type"),
    ("reference-range", _object('{"type_key": "Array", "data": [77]}'), 6, "no node 77"),
    ("reference-circle", _object('{"type_key": "Array", "data": [4]}'), 6, "circle"),
    ("reference-text", _object('{"type_key": "Array", "data": ["x"]}'), 6, "no integer"),
    ("attributes-as-a-size", _object('{"type_key": "Array", "data": [5]},'
        '{"type_key": "relay.attrs.InitOpAttrs", "attrs": {"shape": "0", "dtype": ""}}'),
        6, "a MetaAttrs can't be an attribute's value"),
    ("imm-range", _object('{"type_key": "IntImm", "attrs": {"dtype": "int16", "value": "70000"}}'),
     6, "int16's range"),
    ("imm-dtype", _object('{"type_key": "IntImm", "attrs": {"dtype": "int7", "value": "7"}}'),
     6, "dtype 'int7'"),
    ("doubling", _object(",".join(
        f'{{"type_key": "Array", "data": [{i}, {i}]}}' for i in range(5, 45)
    ) + ',{"type_key": "Array"}'), 6, "more than 1000000 values"),
    ("index-range", _GNF.replace("Constant][0]", "Constant][1]"), 0, "holds 1 of them"),
    ("attrs-as-value", _GNF.replace("(%11, meta[relay.Constant][0] /*",
                                    "(meta[relay.attrs.InitOpAttrs][0], %11 /*"), 0, "after the"),
    ("attrs-first", _GNF.replace("%12 = collapse_sum_to(%11, meta[relay.Constant][0]",
                                 "%12 = collapse_sum_to(meta[relay.attrs.InitOpAttrs][0], %11, "
                                 "meta[relay.Constant][0]"), 0, "after the call's attributes"),
    ("attrs-alone", _GNF.replace("%17 = nn.relu(%3)", "%17 = meta[relay.attrs.InitOpAttrs][0]"),
     0, "stand last in a call"),
]  # fmt: skip

_LARGE: list[Case] = [
    ("deep-brackets", _nested("%x", "(", ")"), 3, "deeper than 1000"),
    ("deep-calls", _nested("%x", "f(", ")"), 3, "deeper than 1000"),
    ("deep-functions", _nested("1f", "fn () {", "}"), 3, "deeper than 1000"),
    ("deep-branches", _nested("%x", "if (True) {", "} else { %x }"), 3, "deeper than 1000"),
    ("deep-lists", main("f(a=" + "[" * 10_000 + "]" * 10_000 + ")"), 3, "lists nest deeper"),
    ("deep-open", main("(" * 10_000), 3, "deeper than 1000"),
    ("large", main("%x") + "/" * (64 * 2**20), 1, "max_size"),
]

MALFORMED: list[Case] = [*_TRUNCATED, *_BODIES, *_TYPES, *_MODULES, *_METADATA, *_LARGE]

# (name, text, line, the construct's name)
REFUSED: list[Case] = [
    ("free-var", main("free_var %y; %y"), 3, "free variables"),
    ("incomplete", main("%x", "%x: (_, float32)"), 2, "`_` within a type"),
    ("virtual-device", HEADER + "def @f(%x {virtual_device=1}: float32) { %x }", 2, "virtual"),
    ("external", HEADER + "def @f = meta[ExternalFunc][0]", 2, "external functions"),
]
