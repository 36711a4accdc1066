"""Move, merge and rename the modules of a checkout by the table in moves.json.

Run it with Python 3.12 or newer (older versions have no positions inside of f-strings), in the root
of a clean checkout, then run adapt.py. It rewrites imports, uses, annotations in quotes, dotted names and paths
in strings, comments and documents. What it cannot decide by itself it prints.
"""

import ast, sys, os, re, json, collections, subprocess, builtins, tokenize, io

HERE = os.path.dirname(os.path.abspath(__file__))
PY_DIRS = ["src", "tests", "bench", "scripts", "examples", "docs"]
TEST_FOLDERS = {
    "tests.app": "tests.operations",
    "tests.programs": "tests.agents",
    "tests.runtime": "tests.engine",
    "tests.server": "tests.http",
}


UNMOVED = {"loopwright.__main__"}


def new_test_module(m):
    """Tests mirror the packages."""
    for a, b in TEST_FOLDERS.items():
        if m == a or m.startswith(a + "."):
            return b + m[len(a) :]
    if m == "tests.agents.test_acp":
        return "tests.agents.clis.test_acp"
    if m.startswith("tests.agents.") and not m.startswith("tests.agents.clis"):
        return "tests.prompts." + m[len("tests.agents.") :]
    return m


def module_of(p):
    if p.startswith("src/"):
        m = p[4:-3]
    else:
        m = p[:-3]
    m = m.replace("/", ".")
    return m[:-9] if m.endswith(".__init__") else m


files = {}
for top in PY_DIRS:
    for d, dn, fs in os.walk(top):
        dn[:] = [x for x in dn if x not in ("__pycache__", "corpus")]
        for f in fs:
            if f.endswith(".py"):
                p = os.path.join(d, f)
                files[module_of(p)] = p
new = {}
docs = {}
ren = collections.defaultdict(dict)
srcs = {}
table = json.load(open(os.path.join(HERE, "moves.json"), encoding="utf-8"))
for k, v in table["modules"].items():
    sources = [s for s in v["from"] if s in files]
    for s in v["from"]:
        if s not in files:
            print("not there any more:", s)
    if not sources:
        continue
    srcs[k] = sources
    if v.get("doc"):
        docs[k] = v["doc"]
    for s in sources:
        new[s] = k
for k, v in table["renames"].items():
    m, _, n = k.partition(":")
    if v != n:
        ren[m][n] = v
for m in files:
    if m.startswith("tests.") and new_test_module(m) != m:
        new[m] = new_test_module(m)
        srcs[new[m]] = [m]
for m in files:
    if m not in new:
        new[m] = m
        srcs.setdefault(m, []).append(m) if m in srcs else srcs.__setitem__(m, [m])
problems = []
for m, p in files.items():
    if m.startswith("loopwright.") and not p.endswith("__init__.py") and m not in UNMOVED:
        if not any(m in v["from"] for v in table["modules"].values()):
            problems.append(f"UNLISTED {m}: say in moves.json where it goes")
if problems:
    sys.exit("\n".join(problems))


def problem(*a):
    problems.append(" ".join(map(str, a)))


texts = {m: open(p, "rb").read() for m, p in files.items()}
trees = {m: ast.parse(b) for m, b in texts.items()}


class Scope:
    def __init__(s, kind, parent):
        s.kind = kind
        s.parent = parent
        s.names = set()
        s.globals = set()
        s.nonlocals = set()
        s.imports = {}


class Builder(ast.NodeVisitor):
    def __init__(s):
        s.module = Scope("module", None)
        s.cur = s.module
        s.uses = []
        s.imports = []
        s.globalstmts = []
        s.strings = []

    def bind(s, name, scope=None):
        sc = scope or s.cur
        if name in sc.globals:
            s.module.names.add(name)
        else:
            sc.names.add(name)

    def inscope(s, kind, fn):
        old = s.cur
        s.cur = Scope(kind, old)
        fn()
        s.cur = old

    def ann(s, node):
        if node is None:
            return
        for n in ast.walk(node):
            if isinstance(n, ast.Constant) and isinstance(n.value, str):
                s.strings.append((n, s.cur))
        s.visit(node)

    def visit_FunctionDef(s, n):
        s.bind(n.name)
        for d in n.decorator_list:
            s.visit(d)
        a = n.args
        for x in a.posonlyargs + a.args + a.kwonlyargs + [y for y in (a.vararg, a.kwarg) if y]:
            s.ann(x.annotation)
        for x in a.defaults + [y for y in a.kw_defaults if y]:
            s.visit(x)
        s.ann(n.returns)

        def body():
            for x in a.posonlyargs + a.args + a.kwonlyargs + [y for y in (a.vararg, a.kwarg) if y]:
                s.cur.names.add(x.arg)
            s.prescan(n.body)
            for x in n.body:
                s.visit(x)

        s.inscope("function", body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def prescan(s, body):
        for b in body:
            for n in ast.walk(b):
                if isinstance(n, ast.Global):
                    s.cur.globals.update(n.names)

    def visit_Lambda(s, n):
        a = n.args
        for x in a.defaults + [y for y in a.kw_defaults if y]:
            s.visit(x)

        def body():
            for x in a.posonlyargs + a.args + a.kwonlyargs + [y for y in (a.vararg, a.kwarg) if y]:
                s.cur.names.add(x.arg)
            s.visit(n.body)

        s.inscope("function", body)

    def visit_ClassDef(s, n):
        s.bind(n.name)
        for x in n.decorator_list + n.bases:
            s.visit(x)
        for k in n.keywords:
            s.visit(k.value)
        s.inscope("class", lambda: [s.visit(x) for x in n.body])

    def comp(s, n, elts):
        s.visit(n.generators[0].iter)

        def body():
            for i, g in enumerate(n.generators):
                s.visit(g.target)
                if i:
                    s.visit(g.iter)
                for c in g.ifs:
                    s.visit(c)
            for e in elts:
                s.visit(e)

        s.inscope("comp", body)

    def visit_ListComp(s, n):
        s.comp(n, [n.elt])

    visit_SetComp = visit_ListComp
    visit_GeneratorExp = visit_ListComp

    def visit_DictComp(s, n):
        s.comp(n, [n.key, n.value])

    def visit_NamedExpr(s, n):
        sc = s.cur
        while sc.kind == "comp":
            sc = sc.parent
        s.bind(n.target.id, sc)
        s.uses.append((n.target, sc))
        s.visit(n.value)

    def visit_Name(s, n):
        if isinstance(n.ctx, (ast.Store, ast.Del)):
            s.bind(n.id)
        s.uses.append((n, s.cur))

    def visit_AnnAssign(s, n):
        s.visit(n.target)
        s.ann(n.annotation)
        if n.value:
            s.visit(n.value)

    def visit_Global(s, n):
        s.cur.globals.update(n.names)
        s.module.names.update(n.names)
        s.globalstmts.append(n)

    def visit_ExceptHandler(s, n):
        if n.name:
            s.bind(n.name)
        s.generic_visit(n)

    def visit_MatchAs(s, n):
        if n.name:
            s.bind(n.name)
        s.generic_visit(n)

    def visit_MatchStar(s, n):
        if n.name:
            s.bind(n.name)

    def visit_MatchMapping(s, n):
        if n.rest:
            s.bind(n.rest)
        s.generic_visit(n)

    def visit_Import(s, n):
        for a in n.names:
            s.bind(a.asname or a.name.split(".")[0])
        s.imports.append((n, s.cur))

    def visit_ImportFrom(s, n):
        for a in n.names:
            s.bind(a.asname or a.name)
        s.imports.append((n, s.cur))

    def visit_Subscript(s, n):
        if not (isinstance(n.value, ast.Name) and n.value.id == "Literal"):
            for c in ast.walk(n.slice):
                if (
                    isinstance(c, ast.Constant)
                    and isinstance(c.value, str)
                    and c.value.isidentifier()
                ):
                    s.strings.append((c, s.cur))
        s.generic_visit(n)

    def visit_Assign(s, n):
        if any(isinstance(t, ast.Name) and t.id == "__all__" for t in n.targets):
            for c in ast.walk(n.value):
                if isinstance(c, ast.Constant) and isinstance(c.value, str):
                    s.strings.append((c, s.cur))
        s.generic_visit(n)

    def visit_Call(s, n):
        if (
            isinstance(n.func, ast.Name)
            and n.func.id == "cast"
            and n.args
            and isinstance(n.args[0], ast.Constant)
            and isinstance(n.args[0].value, str)
        ):
            s.strings.append((n.args[0], s.cur))
        s.generic_visit(n)


def resolve(scope, name):
    sc = scope
    first = True
    while sc:
        if name in sc.globals:
            while sc.parent:
                sc = sc.parent
            return sc
        if (sc.kind != "class" or first) and name in sc.names:
            return sc
        first = first and sc.kind == "comp"
        sc = sc.parent
    return None


info = {}
for m, t in trees.items():
    b = Builder()
    b.visit(t)
    info[m] = b


def defined(m, name, seen=()):
    """Where a name of module m is really defined: (module, name)."""
    if m not in info or m in seen:
        return (m, name)
    for n, sc in info[m].imports:
        if sc is info[m].module and isinstance(n, ast.ImportFrom) and n.module in files:
            for a in n.names:
                if (a.asname or a.name) == name and f"{n.module}.{a.name}" not in files:
                    return defined(n.module, a.name, (*seen, m))
    return (m, name)


def exported(m, name):
    for n in trees[m].body:
        if isinstance(n, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "__all__" for t in n.targets
        ):
            return any(isinstance(c, ast.Constant) and c.value == name for c in ast.walk(n.value))
    return False


def newname(m, name):
    dm, dn = defined(m, name)
    return ren.get(dm, {}).get(dn, dn)


def offsets(b):
    o = [0]
    for line in b.split(b"\n"):
        o.append(o[-1] + len(line) + 1)
    return o


edited = {}
imports_of = {}
defs_of = collections.defaultdict(set)
for m in files:
    own = set()
    bi = info[m]
    imported = set()
    for n, sc in bi.imports:
        if sc is bi.module:
            for a in n.names:
                imported.add(a.asname or a.name.split(".")[0])
    defs_of[m] = bi.module.names - imported


def grouped(parts, indent, trail):
    g = {}
    out = []
    for p in parts:
        q = re.match(r"from (\S+) import (.+)$", p)
        if q:
            g.setdefault(q.group(1), []).append(q.group(2))
        else:
            out.append(p)
    out += [f"from {k} import {', '.join(v)}" for k, v in g.items()]
    sep = ("  " + trail if trail else "") + "\n" + " " * indent
    return sep.join(out)


def process(m):
    b = texts[m]
    o = offsets(b)
    bi = info[m]
    T = new[m]
    edits = []
    pos = lambda l, c: o[l - 1] + c
    span = lambda n: (pos(n.lineno, n.col_offset), pos(n.end_lineno, n.end_col_offset))
    names = {}  # (scope,name)->newname
    modules = {}  # (scope,name)->(oldmod,newbound or None)
    allnames = {x.id for x, _ in bi.uses} | {a for sc in [bi.module] for a in sc.names}
    importlist = []  # for top-level: (newmod,sym,as or None,typechecking)
    tc_nodes = set()
    for n in trees[m].body:
        if isinstance(n, ast.If) and isinstance(n.test, ast.Name) and n.test.id == "TYPE_CHECKING":
            for x in n.body:
                tc_nodes.add(id(x))
    ups = {}
    for n, sc in bi.imports:
        out = []
        drop = False
        if isinstance(n, ast.Import):
            changed = False
            parts = []
            for a in n.names:
                if a.name in files and (new[a.name] != a.name):
                    if not a.asname:
                        problem("import dotted", m, a.name)
                    parts.append(f"import {new[a.name]}" + (f" as {a.asname}" if a.asname else ""))
                    changed = True
                    if a.asname:
                        modules[(sc, a.asname)] = (a.name, a.asname)
                else:
                    if a.name in files and a.asname:
                        modules[(sc, a.asname)] = (a.name, a.asname)
                    parts.append("import " + a.name + (f" as {a.asname}" if a.asname else ""))
            ups[id(n)] = (n, sc, parts, changed)
            continue
        if n.level:
            problem("relative import", m, n.lineno)
        parts = []
        changed = False
        for a in n.names:
            full = f"{n.module}.{a.name}"
            bound = a.asname or a.name
            if (
                full in files
                and n.module.split(".")[0] in ("loopwright", "tests", "bench", "scripts")
                and not (
                    n.module in files and n.module != m and a.name in info[n.module].module.names
                )
            ):
                N = new[full]
                P, _, last = N.rpartition(".")
                if N == T and m != full and new[m] != m or (N == T and full != m):
                    modules[(sc, bound)] = (full, None)
                    changed = True
                    continue
                nb = a.asname or last
                if not a.asname and nb != bound:
                    if nb in allnames and not any(
                        new.get(f"{x.module}.{y.name}") == N
                        for x, _ in bi.imports
                        if isinstance(x, ast.ImportFrom)
                        for y in x.names
                        if (y.asname or y.name) == nb
                    ):
                        nb = bound
                modules[(sc, bound)] = (full, nb)
                text = f"from {P} import {last}" + (f" as {nb}" if nb != last else "")
                parts.append(text)
                if N != full or nb != bound:
                    changed = True
            elif n.module in files:
                dm, dn = defined(n.module, a.name)
                sym = newname(n.module, a.name)
                # imported from a package that re-exports: keep the package; follows the definition when the package is gone
                src = n.module
                if (
                    dm != src
                    and dm in new
                    and new[dm].startswith("tests.")
                    and src.startswith("loopwright.")
                ):
                    src = dm
                elif (
                    dm != src
                    and not files[src].endswith("__init__.py")
                    and not exported(src, a.name)
                    and dm.startswith(n.module.split(".")[0])
                ):
                    src = dm
                N = new[src]
                if N == T and src != m:
                    changed = True
                    if bound != sym:
                        names[(sc, bound)] = sym
                    continue
                nb = a.asname or sym
                if not a.asname and nb != bound:
                    clash = (nb in bi.module.names and nb != bound) or any(
                        nb in s2.names for x, s2 in bi.uses if x.id == bound
                    )
                    if clash:
                        nb = bound
                        problem("note alias", m, sym, "as", bound)
                if nb != bound:
                    names[(sc, bound)] = nb
                parts.append(f"from {N} import {sym}" + (f" as {nb}" if nb != sym else ""))
                if N != src or sym != a.name or nb != bound:
                    changed = True
            else:
                if n.module and n.module.startswith("loopwright"):
                    problem("unknown module", m, n.module)
                parts.append(
                    f"from {n.module} import {a.name}" + (f" as {a.asname}" if a.asname else "")
                )
        ups[id(n)] = (n, sc, parts, changed)
    # own definitions
    for old, nn in ren.get(m, {}).items():
        if old in bi.module.names:
            if defined(m, old) == (m, old):
                names[(bi.module, old)] = nn
            if nn in bi.module.names and nn != old and nn not in ren.get(m, {}):
                problem("CLASH own", m, old, nn)
    # usages
    byold = collections.defaultdict(list)
    for nme, sc in bi.uses:
        r = resolve(sc, nme.id)
        if r is None:
            continue
        k = (r, nme.id)
        if k in names:
            nn = names[k]
            s2 = sc
            while s2 is not r and s2 is not None:
                if nn in s2.names:
                    problem("CLASH local", m, nme.lineno, nme.id, "->", nn)
                s2 = s2.parent
            edits.append((*span(nme), nn))
    attr_done = set()
    for node in ast.walk(trees[m]):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            byold[id(node.value)].append(node)
    callof = {}
    for node in ast.walk(trees[m]):
        if (
            isinstance(node, ast.Call)
            and len(node.args) >= 2
            and isinstance(node.args[0], ast.Name)
            and isinstance(node.args[1], ast.Constant)
            and isinstance(node.args[1].value, str)
        ):
            callof[id(node.args[0])] = node.args[1]
    for nme, sc in bi.uses:
        r = resolve(sc, nme.id)
        k = (r, nme.id)
        if r is None or k not in modules:
            continue
        oldmod, nb = modules[k]
        s2 = sc
        while s2 is not r and s2 is not None:
            if nb and nb != nme.id and nb in s2.names:
                problem("CLASH module local", m, nme.lineno, nme.id, "->", nb)
            s2 = s2.parent
        at = byold.get(id(nme))
        if at:
            node = at[0]
            na = newname(oldmod, node.attr)
            if nb is None:
                edits.append((*span(node), na))
            else:
                s, e = span(nme)
                edits.append((s, e, nb))
                s, e = span(node)
                if na != node.attr:
                    edits.append((e - len(node.attr), e, na))
        else:
            if nb is None:
                problem("module object of itself", m, nme.lineno, nme.id)
            else:
                edits.append((*span(nme), nb))
            c = callof.get(id(nme))
            if c is not None:
                na = newname(oldmod, c.value)
                if na != c.value:
                    s, e = span(c)
                    edits.append((s, e, json.dumps(na)))
    # definition sites of def/class
    for node in trees[m].body + [
        x for n in trees[m].body if isinstance(n, (ast.If, ast.Try)) for x in ast.walk(n)
    ]:
        if (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and (bi.module, node.name) in names
        ):
            s, _ = span(node)
            mm = re.compile(rb"(?:async\s+)?(?:def|class)\s+").match(b, s)
            e = mm.end()
            edits.append((e, e + len(node.name), names[(bi.module, node.name)]))
    for g in bi.globalstmts:
        if any((bi.module, x) in names for x in g.names):
            edits.append(
                (*span(g), "global " + ", ".join(names.get((bi.module, x), x) for x in g.names))
            )
    strmap = {k[1]: v for k, v in names.items() if k[0] is bi.module}
    modmap = {k[1]: v for k, v in modules.items() if k[0] is bi.module}
    for c, sc in bi.strings:
        s, e = span(c)
        t = b[s:e].decode()
        t2 = re.sub(r"(?<![\w.])([A-Za-z_]\w*)", lambda q: strmap.get(q.group(1), q.group(1)), t)

        def md(q):
            om, nb = modmap[q.group(1)]
            na = newname(om, q.group(2))
            return na if nb is None else f"{nb}.{na}"

        if modmap:
            t2 = re.sub(r"(?<![\w.])(" + "|".join(map(re.escape, modmap)) + r")\.(\w+)", md, t2)
        if t2 != t:
            edits.append((s, e, t2))
    # import statements
    toplevel = []
    single = len(srcs[T]) == 1
    for n, sc, parts, changed in ups.values():
        s, e = span(n)
        top = sc is bi.module
        if not single and top:
            ls = o[n.lineno - 1]
            le = b.find(b"\n", e)
            le = len(b) if le < 0 else le + 1
            trail = b[e:le].strip()
            in_try = n not in trees[m].body and id(n) not in tc_nodes
            if in_try:
                problem("import in a block", m, n.lineno)
                if changed:
                    edits.append((s, e, grouped(parts, n.col_offset, trail.decode()) or "pass"))
                continue
            for p in parts:
                toplevel.append((p, id(n) in tc_nodes, trail.decode() if len(n.names) == 1 else ""))
            edits.append((ls, le, ""))
        elif changed:
            if parts:
                le = b.find(b"\n", e)
                le = len(b) if le < 0 else le
                edits.append((s, e, grouped(parts, n.col_offset, b[e:le].strip().decode())))
            else:
                ls = o[n.lineno - 1]
                le = b.find(b"\n", e)
                edits.append((ls, le + 1, ""))
    # texts of the source in tables of planted bugs
    for call, owner in planted_in(m):
        words, mods = name_maps(owner)
        for c in [*call.args[1:], *(k.value for k in call.keywords)]:
            if isinstance(c, ast.Constant) and isinstance(c.value, str):
                s, e = span(c)
                t = b[s:e].decode()
                t2 = renamed_code(t, words, mods)
                if t2 != t:
                    edits.append((s, e, t2))
    return edits, toplevel


def planted_in(m):
    """The calls `Mutant(function, old, new)` and `Planted(module, old, new)`, and the module whose
    text each of them changes.
    """
    for node in ast.walk(trees[m]):
        if not (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and m in ("tests.faults.mutants", "tests.kernel_differential.planted")
            and node.args
        ):
            continue
        first = node.args[0]
        if node.func.id == "Planted" and isinstance(first, ast.Constant):
            yield node, "loopwright.kernel." + first.value.replace("/", ".")
        elif node.func.id == "Mutant":
            while isinstance(first, ast.Attribute):
                chain, first = first, first.value
            owner = None
            for n, _ in info[m].imports:
                for a in n.names:
                    if (a.asname or a.name) == first.id and isinstance(n, ast.ImportFrom):
                        full = f"{n.module}.{a.name}"
                        if full in files:
                            owner = defined(full, chain.attr)[0]
                        else:
                            owner = defined(n.module, a.name)[0]
            if owner is None:
                problem("PLANTED without a module", m, node.lineno)
                continue
            yield node, owner


def name_maps(m):
    """The new names of what the module-level names of a module mean, and of modules in it."""
    words = {
        k: v
        for k, v in ren.get(m, {}).items()
        if k in info[m].module.names and defined(m, k) == (m, k)
    }
    mods = {}
    for n, sc in info[m].imports:
        if sc is not info[m].module or not isinstance(n, ast.ImportFrom):
            continue
        for a in n.names:
            full = f"{n.module}.{a.name}"
            bound = a.asname or a.name
            if full in files and full not in ("loopwright",):
                N = new[full]
                mods[bound] = (full, None if N == new[m] else a.asname or N.rpartition(".")[2])
            elif n.module in files and not a.asname:
                if newname(n.module, a.name) != a.name:
                    words[bound] = newname(n.module, a.name)
    return words, mods


def renamed_code(text, words, mods):
    """Names in a piece of source; `\\n` may come before one."""
    start = r"(?:(?<![\w.])|(?<=\\n))"
    if mods:

        def of_module(q):
            full, bound = mods[q.group(1)]
            name = newname(full, q.group(2))
            return name if bound is None else f"{bound}.{name}"

        text = re.sub(
            start + "(" + "|".join(map(re.escape, mods)) + r")\.([A-Za-z_]\w*)", of_module, text
        )
    return re.sub(
        start + r"([A-Za-z_]\w*)(?!\w|=[^=])", lambda q: words.get(q.group(1), q.group(1)), text
    )


CODE_IMPORT = re.compile(r"from (loopwright(?:\.\w+)+) import (\([^)]*\)|[^\n\\;\"')]+)")


def code_in_text(text):
    """Names that code in a string or a document imports from modules that are still called as before.
    `dotted` renames the modules afterwards.
    """
    words = {}
    for q in CODE_IMPORT.finditer(text):
        if q.group(1) not in files:
            continue
        for name in re.findall(r"[A-Za-z_]\w*", q.group(2)):
            if f"{q.group(1)}.{name}" in files:
                if new[f"{q.group(1)}.{name}"] != f"{q.group(1)}.{name}":
                    problem("MODULE imported in a text", q.group(0))
            elif newname(q.group(1), name) != name:
                words[name] = newname(q.group(1), name)
    return renamed_code(text, words, {}) if words else text


def apply(b, edits):
    edits = sorted(set(edits), key=lambda x: (x[0], x[1]))
    out = []
    p = 0
    for s, e, t in edits:
        if s < p:
            if e <= p:
                continue
            problem("overlap", b[s:e][:60])
            continue
        out.append(b[p:s])
        out.append(t.encode())
        p = e
    out.append(b[p:])
    return b"".join(out)


MODS = sorted((m for m in files if m.startswith(("loopwright.", "tests."))), key=len, reverse=True)


def dotted(text):
    """Dotted module names in strings, comments and documents."""

    def sub(q):
        full = q.group(0)
        parts = full.split(".")
        for i in range(len(parts), 1, -1):
            m = ".".join(parts[:i])
            if m in files:
                rest = parts[i:]
                if rest:
                    rest[0] = ren.get(m, {}).get(rest[0], rest[0])
                return ".".join([new[m], *rest])
        return full

    text = re.sub(r"\b(?:loopwright|tests)(?:\.[A-Za-z_]\w*)+", sub, text)
    text = re.sub(r"\b(loopwright(?:\.\w+)+):([A-Za-z_]\w*)", lambda q: q.group(0), text)
    return text


PATHS = {}
for m, p in files.items():
    if new[m] == m:
        continue
    if p.startswith("src/loopwright/"):
        PATHS[p[len("src/loopwright/") :]] = (
            new[m].replace("loopwright.", "", 1).replace(".", "/") + ".py"
        )
    elif p.startswith("tests/"):
        PATHS[p] = new[m].replace(".", "/") + ".py"


def paths(text):
    if ".py" not in text:
        return text

    def sub(q):
        pre, p = q.group(1), q.group(2)
        if pre in ("tests/",):
            full = "tests/" + p
            if full in PATHS:
                return PATHS[full]
            return q.group(0)
        if pre.endswith("/") and pre != "src/loopwright/" and pre != "loopwright/":
            return q.group(0)
        if p in PATHS:
            tgt = PATHS[p]
            return tgt if tgt.startswith("tests/") else pre + tgt
        return q.group(0)

    return re.sub(
        r"(?<![\w.-])((?:[\w.-]+/)*?)((?:"
        + "|".join(sorted({re.escape(x.split("/")[0]) for x in PATHS if "/" in x}))
        + r")/[\w/]+\.py)\b",
        sub,
        text,
    )


result = {}
removed = []
parts_of = {}
for m in files:
    edits, top = process(m)
    body = apply(texts[m], edits)
    parts_of[m] = (body, top)
for T, ss in srcs.items():
    if len(ss) == 1:
        m = ss[0]
        b = parts_of[m][0]
        if T in docs:
            t = ast.parse(b)
            n = t.body[0]
            assert ast.get_docstring(t) is not None, m
            o = offsets(b)
            e = o[n.end_lineno - 1] + n.end_col_offset
            d = docs[T].strip()
            b = (b'"""' + d.encode() + (b'\n"""' if "\n" in d else b'"""')) + b[e:]
        result[T] = b
        continue
    # order
    g = {s: set() for s in ss}
    for s in ss:
        for n, sc in info[s].imports:
            if sc is not info[s].module or not isinstance(n, ast.ImportFrom):
                continue
            for a in n.names:
                full = f"{n.module}.{a.name}"
                x = full if full in files else n.module
                if x in g and x != s:
                    g[s].add(x)
    done = []

    def go(s, st=()):
        if s in st:
            problem("cycle", T, st)
            return
        if s in done:
            return
        for d in ss:
            if d in g[s]:
                go(d, (*st, s))
        done.append(s)

    for s in ss:
        go(s)
    # imports of all sources: one binding per name
    seen = {}
    lines = []
    tclines = []
    texts2 = []
    alldefs = {}
    for s in done:
        for x in defs_of[s]:
            alldefs.setdefault(ren.get(s, {}).get(x, x), s)
    for s in done:
        body, top = parts_of[s]
        body = re.sub(
            r"(?m)^if TYPE_CHECKING:[ \t]*\n(?![ \t]+\S)(?:[ \t]*\n)*(?![ \t]+\S)",
            "",
            body.decode(),
        ).encode()
        try:
            t = ast.parse(body)
        except SyntaxError as er:
            problem("SYNTAX", s, er)
            raise
        alias = {}
        for text, tc, trail in top:
            q = re.match(r"(?:from (\S+) )?import (\S+)(?: as (\w+))?$", text)
            bound = q.group(3) or (q.group(2) if q.group(1) else q.group(2).split(".")[0])
            key = (q.group(1), q.group(2))
            if (
                bound in alldefs
                and alldefs[bound] != s
                or (bound in seen and seen[bound][0] != key)
            ):
                nb = f"{(q.group(1) or '').rsplit('.', 1)[-1].strip('_')}_{bound}".lstrip("_")
                problem("note auto alias", T, s, text, "->", nb)
                alias[bound] = nb
                text = re.sub(r" as \w+$", "", text) + f" as {nb}"
                bound = nb
            if bound in seen:
                if seen[bound][1] and not tc:
                    seen[bound] = (key, False)
                    tclines = [l for l in tclines if l.split("  #")[0] != text]
                    lines.append(text + (f"  {trail}" if trail else ""))
                continue
            seen[bound] = (key, tc)
            (tclines if tc else lines).append(text + (f"  {trail}" if trail else ""))
        # builtins captured
        used = {n.id for n, sc in info[s].uses if resolve(sc, n.id) is None}
        for x in used & (set(alldefs) | set(seen)):
            if x in alldefs and alldefs[x] != s:
                problem("CAPTURE", T, s, x, "defined in", alldefs[x])
        if alias:
            bb = Builder()
            bb.visit(t)
            o = offsets(body)
            ed = []
            # imports were removed: names resolve to None
            for n, sc in bb.uses:
                if n.id in alias and resolve(sc, n.id) is None:
                    st = o[n.lineno - 1] + n.col_offset
                    ed.append((st, st + len(n.id), alias[n.id]))
            for c, sc in bb.strings:
                st = o[c.lineno - 1] + c.col_offset
                en = o[c.end_lineno - 1] + c.end_col_offset
                tt = body[st:en].decode()
                t2 = re.sub(
                    r"(?<![\w.])([A-Za-z_]\w*)", lambda q: alias.get(q.group(1), q.group(1)), tt
                )
                if t2 != tt:
                    ed.append((st, en, t2))
            body = apply(body, ed)
        # strip docstring and empty TYPE_CHECKING
        txt = body.decode()
        tt = ast.parse(txt)
        if ast.get_docstring(tt) is not None:
            n = tt.body[0]
            ls = txt.split("\n")
            txt = "\n".join(ls[n.end_lineno :])
        if re.search(r"(?m)^__all__", txt):
            problem("__all__ in merged", T, s)
        texts2.append(txt.strip("\n"))
    if any("TYPE_CHECKING" in x for x in texts2):
        pass
    fut = [l for l in lines if l.startswith("from __future__")]
    lines = [l for l in lines if not l.startswith("from __future__")]
    d = docs[T].strip()
    head = '"""' + d + ('\n"""' if "\n" in d else '"""') + "\n\n"
    out = head + "\n".join(dict.fromkeys(fut + lines)) + "\n"
    if tclines:
        out += (
            "\nif TYPE_CHECKING:\n" + "\n".join("    " + l for l in dict.fromkeys(tclines)) + "\n"
        )
    out += "\n" + "\n\n\n".join(texts2) + "\n"
    result[T] = out.encode()


# strings and comments in python files
def code_strings(b):
    """Programs in strings: the names that they import."""
    if b"from loopwright" not in b:
        return b
    o = offsets(b)
    edits = []
    for node in ast.walk(ast.parse(b)):
        if isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str)
        ):
            s = o[node.lineno - 1] + node.col_offset
            e = o[node.end_lineno - 1] + node.end_col_offset
            t = b[s:e].decode()
            if t[:1] not in "rbfuRBFU\"'" or "from loopwright" not in t:
                continue
            t2 = code_in_text(t)
            if t2 != t:
                edits.append((s, e, t2))
    return apply(b, edits)


def fix_strings(b):
    b = code_strings(b)
    src = b.decode()
    if "loopwright" not in src and "tests" not in src and ".py" not in src:
        return b
    lines = src.split("\n")
    starts = [0]
    for l in lines:
        starts.append(starts[-1] + len(l) + 1)
    ed = []
    try:
        for tok in tokenize.generate_tokens(io.StringIO(src).readline):
            if tok.type in (
                tokenize.STRING,
                tokenize.COMMENT,
                getattr(tokenize, "FSTRING_MIDDLE", -1),
            ):
                s = starts[tok.start[0] - 1] + tok.start[1]
                e = starts[tok.end[0] - 1] + tok.end[1]
                t = src[s:e]
                t2 = paths(dotted(t))
                if t2 != t:
                    ed.append((s, e, t2))
    except (tokenize.TokenError, IndentationError) as er:
        problem("tokenize", er)
        return b
    out = []
    p = 0
    for s, e, t in ed:
        out.append(src[p:s])
        out.append(t)
        p = e
    out.append(src[p:])
    return "".join(out).encode()


pkgs = set()
for T in result:
    ps = T.split(".")
    for i in range(1, len(ps)):
        pkgs.add(".".join(ps[:i]))


def path_for(T):
    base = "src/" if T.startswith("loopwright") else ""
    keep = files.get(T)
    if T in pkgs or (
        len(srcs[T]) == 1 and files.get(srcs[T][0], "").endswith("__init__.py") and T == srcs[T][0]
    ):
        return base + T.replace(".", "/") + "/__init__.py"
    return base + T.replace(".", "/") + ".py"


pk2 = set()
for T in result:
    if len(srcs[T]) == 1 and files.get(T, "").endswith("__init__.py") and T == srcs[T][0]:
        continue
    ps = T.split(".")
    for i in range(1, len(ps)):
        pk2.add(".".join(ps[:i]))
for T in list(result):
    if (
        len(srcs[T]) == 1
        and files.get(T, "").endswith("__init__.py")
        and T.startswith("loopwright.")
        and T == srcs[T][0]
        and T not in pk2
    ):
        del result[T]
outfiles = {path_for(T): fix_strings(b) for T, b in result.items()}
for m, p in files.items():
    if p not in outfiles and os.path.exists(p):
        os.remove(p)
for p, b in outfiles.items():
    os.makedirs(os.path.dirname(p), exist_ok=True)
    if not os.path.exists(p) or open(p, "rb").read() != b:
        open(p, "wb").write(b)
# other text files
for p in subprocess.run(
    ["git", "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True
).stdout.split("\n"):
    if (
        p.endswith((".md", ".toml", ".yaml", ".yml", ".json", ".sh", "Makefile", ".cfg"))
        and os.path.exists(p)
        and not p.startswith(
            ("tests/corpus", "tests/golden/logs", "tests/golden/transcripts", "bench/results")
        )
    ):
        t = open(p, encoding="utf-8").read()
        t2 = t
        if p.endswith(".md"):
            t2 = re.sub(r"(?ms)^```python\n.*?^```$", lambda q: code_in_text(q.group(0)), t2)
        t2 = paths(dotted(t2))
        if t2 != t:
            open(p, "w", encoding="utf-8").write(t2)
problems = list(dict.fromkeys(problems))
for x in problems:
    print(x)
print(len(files), "->", len(outfiles), "files;", len(problems), "remarks")
if any(x.split()[0].isupper() or x.startswith(("cycle", "not there")) for x in problems):
    sys.exit("the remarks in capitals have to be corrected in the table")
