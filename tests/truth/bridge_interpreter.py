"""A small interpreter of Megatron-Bridge's recipes: assignments, calls within the package, and known conditions.

`Package` holds the modules of one version by their syntax trees; `Run.call` gives the value of a function. Classes
become a `Thing`: what is given to them, or set on them. What is not known is `UNKNOWN`. Nothing is imported or run.
"""

from __future__ import annotations

import ast
import io
import subprocess
import tarfile

from simcore.inputs.document import parse_document

VERSION = "067f987df03b8355b03192d88d70f1709fedf51a"
ROOT = "src/megatron/bridge/"
ROOMS = ("recipes/", "perf_recipes/", "training/", "utils/", "peft/", "models/")
DTYPES = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16", "uint8": "fp8", "float8_e4m3fn": "fp8"}
OF_MODELS = ("to_megatron_provider", "get_model_config", "to_megatron_model", "to_text_provider", "finalize",
             "__post_init__")
"""Methods of a model that give the model itself."""
DEGREES = frozenset({"tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"})
"""Fields of a model that are 1 where nothing sets them (Megatron-LM d98e8a64 core/model_parallel_config.py)."""
BUDGET = 200_000
"""Statements of one recipe."""


class Unknown:
    """A value that is not known."""


UNKNOWN = Unknown()


class Returned(Exception):
    """Carries a function's value out of its statements."""


class Thing:
    """An object of a class that is not read further: what was set of it."""

    def __init__(self, name, values):
        self.values = {"_target_": name} | values


class Package:
    """Modules of the package by their dotted names; their functions, constants and imports."""

    def __init__(self, git):
        command = ["git", f"--git-dir={git}", "archive", VERSION, *(f"{ROOT}{room}" for room in ROOMS)]
        archive = subprocess.run(command, capture_output=True, check=True).stdout
        self.modules, self.files = {}, {}
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for one in tar:
                if one.isfile() and one.name.endswith(".cfg"):
                    self.files[one.name] = tar.extractfile(one).read().decode()
                if one.isfile() and one.name.endswith(".py"):
                    dotted = one.name.removeprefix("src/").removesuffix(".py").replace("/", ".")
                    tree = ast.parse(tar.extractfile(one).read())
                    is_package = dotted.endswith(".__init__")
                    self.modules[dotted.removesuffix(".__init__")] = Module(dotted.removesuffix(".__init__"),
                                                                            is_package, tree)

    def find(self, module, name, depth=0):
        """(module, node) in which a name of a module is defined; None for names of other packages."""
        if module not in self.modules or depth > 8:
            return None
        held = self.modules[module]
        if name in held.defined:
            return held, held.defined[name]
        if name in held.imported:
            source, original = held.imported[name]
            return self.find(source, original, depth + 1)
        return None


class Module:
    """One module."""

    def __init__(self, name, is_package, tree):
        self.name, self.defined, self.imported = name, {}, {}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                self.defined[node.name] = node
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.defined[node.targets[0].id] = node.value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                self.defined[node.target.id] = node.value
            elif isinstance(node, ast.ImportFrom):
                parts = name.split(".") if is_package else name.split(".")[:-1]
                base = ".".join(parts[:len(parts) - node.level + 1]) if node.level else ""
                source = ".".join(part for part in (base, node.module or "") if part)
                for one in node.names:
                    self.imported[one.asname or one.name] = (source, one.name)


class Run:
    """The interpreter of one recipe; `gpu`: the machine of its name, "" if it says none."""

    def __init__(self, package, gpu=""):
        self.package, self.gpu, self.spent, self.depth = package, gpu, 0, 0

    def call(self, module, function, args, words):
        """Value of a function; UNKNOWN if it is too deep."""
        if self.depth > 24:
            return UNKNOWN
        names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
        scope = dict(zip(names, args, strict=False))
        defaults = dict(zip(names[len(names) - len(function.args.defaults):], function.args.defaults, strict=True))
        defaults |= {one.arg: value for one, value in zip(function.args.kwonlyargs, function.args.kw_defaults,
                                                          strict=True) if value is not None}
        scope |= {name: words.get(name, UNKNOWN) if name in words else self.value(module, {}, node)
                  for name, node in defaults.items() if name not in scope}
        scope |= words
        if function.args.kwarg:
            known = {*names, *(one.arg for one in function.args.kwonlyargs)}
            scope[function.args.kwarg.arg] = {name: one for name, one in words.items() if name not in known}
        self.depth += 1
        try:
            self.statements(module, scope, function.body)
        except Returned as returned:
            return returned.args[0]
        finally:
            self.depth -= 1
        return None

    def statements(self, module, scope, body):
        for node in body:
            self.spent += 1
            if self.spent > BUDGET:
                raise RuntimeError("too many statements")
            self.statement(module, scope, node)

    def statement(self, module, scope, node):
        if isinstance(node, ast.Return):
            raise Returned(self.value(module, scope, node.value) if node.value else None)
        if isinstance(node, ast.Assign):
            value = self.value(module, scope, node.value)
            for target in node.targets:
                self.assign(module, scope, target, value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self.assign(module, scope, node.target, self.value(module, scope, node.value))
        elif isinstance(node, ast.Expr):
            self.value(module, scope, node.value)
        elif isinstance(node, ast.If):
            self.choose(module, scope, node, self.value(module, scope, node.test))
        elif isinstance(node, ast.For):
            items = self.value(module, scope, node.iter)
            for one in items if isinstance(items, list | tuple) else ():
                self.assign(module, scope, node.target, one)
                self.statements(module, scope, node.body)
        elif isinstance(node, ast.ImportFrom):
            for one in node.names:
                source = ".".join([*module.name.split(".")[:-node.level or None], node.module or ""]).strip(
                    ".") if node.level else node.module
                scope[one.asname or one.name] = Name(source, one.name)
        elif isinstance(node, ast.Try | ast.With):
            self.statements(module, scope, node.body)

    def choose(self, module, scope, node, test):
        """Statements of a condition. What is set behind one that is not known is not known, unless it was so before."""
        if test is not UNKNOWN:
            self.statements(module, scope, node.body if test else node.orelse)
            return
        if any(isinstance(one, ast.Return | ast.Raise) for one in ast.walk(node)):
            return
        for one in ast.walk(node):
            for target in one.targets if isinstance(one, ast.Assign) else ():
                value = self.value(module, scope, one.value)
                if isinstance(target, ast.Attribute) and self.value(module, scope, target) != value:
                    self.assign(module, scope, target, UNKNOWN)

    def assign(self, module, scope, target, value):
        if isinstance(target, ast.Name):
            scope[target.id] = value
        elif isinstance(target, ast.Attribute):
            held = self._block(module, scope, target.value)
            if isinstance(held, Thing):
                held.values[target.attr] = value
        elif isinstance(target, ast.Subscript):
            held, key = self.value(module, scope, target.value), self.value(module, scope, target.slice)
            if isinstance(held, dict | list) and not isinstance(key, Unknown):
                held[key] = value
        elif isinstance(target, ast.Tuple) and isinstance(value, list | tuple):
            for one, part in zip(target.elts, value, strict=False):
                self.assign(module, scope, one, part)

    def _block(self, module, scope, node):
        """Object of which something is set; one of a run's blocks that the recipe did not give is made by default.

        Megatron-Bridge training/config.py, ConfigContainer: `rerun_state_machine` and others have a default_factory.
        """
        held = self.value(module, scope, node)
        above = self.value(module, scope, node.value) if isinstance(node, ast.Attribute) else None
        if held is not UNKNOWN or not (isinstance(above, Thing) and above.values["_target_"] == "ConfigContainer"):
            return held
        _, whole = self.package.find("megatron.bridge.training.config", "ConfigContainer")
        made = [one.value.keywords[0].value for one in whole.body if isinstance(one, ast.AnnAssign)
                and one.target.id == node.attr and isinstance(one.value, ast.Call) and one.value.keywords]
        if node.attr not in above.values and made:
            above.values[node.attr] = Thing(made[0].id, {})
        return above.values.get(node.attr, UNKNOWN)

    def value(self, module, scope, node):
        try:
            return getattr(self, f"_{type(node).__name__.lower()}", lambda *_: UNKNOWN)(module, scope, node)
        except Returned:
            raise
        except (TypeError, KeyError, ValueError, AttributeError, IndexError):
            return UNKNOWN

    # ---- expressions -------------------------------------------------------------------------------------------------
    def _constant(self, module, scope, node):
        return node.value

    def _name(self, module, scope, node):
        found = scope.get(node.id, self)
        if found is not self:
            return self._resolved(found) if isinstance(found, Name) else found
        return self._resolved(Name(module.name, node.id))

    def _resolved(self, name):
        found = self.package.find(name.module, name.name)
        if found is None:
            return name
        module, node = found
        return Found(module, node) if isinstance(node, ast.FunctionDef | ast.ClassDef) else self.value(module, {}, node)

    def _attribute(self, module, scope, node):
        if isinstance(node.value, ast.Name) and node.value.id == "torch":
            return DTYPES.get(node.attr, UNKNOWN)
        if isinstance(node.value, ast.Name) and node.value.id == "AttnBackend":  # an enumeration of core's
            return node.attr
        held = self.value(module, scope, node.value)
        if isinstance(held, Thing) and node.attr in OF_MODELS and node.attr not in held.values:
            return Method(held, node.attr)
        if isinstance(held, Thing):
            return held.values.get(node.attr, 1 if node.attr in DEGREES else UNKNOWN)
        if isinstance(held, Name | Found | str | list | dict):
            return Method(held, node.attr)
        return UNKNOWN

    def _joinedstr(self, module, scope, node):
        parts = [self.value(module, scope, one.value) if isinstance(one, ast.FormattedValue) else one.value
                 for one in node.values]
        return UNKNOWN if any(isinstance(one, Unknown) for one in parts) else "".join(map(str, parts))

    def _list(self, module, scope, node):
        return [self.value(module, scope, one) for one in node.elts]

    _set = _list

    def _tuple(self, module, scope, node):
        return tuple(self.value(module, scope, one) for one in node.elts)

    def _dict(self, module, scope, node):
        found = {}
        for key, item in zip(node.keys, node.values, strict=True):
            if key is None:
                inner = self.value(module, scope, item)
                found |= inner if isinstance(inner, dict) else {}
            else:
                found[self.value(module, scope, key)] = self.value(module, scope, item)
        return found

    def _subscript(self, module, scope, node):
        held, key = self.value(module, scope, node.value), self.value(module, scope, node.slice)
        return held[key] if isinstance(held, dict | list | tuple) else UNKNOWN

    def _ifexp(self, module, scope, node):
        test = self.value(module, scope, node.test)
        return UNKNOWN if test is UNKNOWN else self.value(module, scope, node.body if test else node.orelse)

    def _boolop(self, module, scope, node):
        value = UNKNOWN
        for one in node.values:
            value = self.value(module, scope, one)
            if value is UNKNOWN or bool(value) != isinstance(node.op, ast.And):
                return value
        return value

    def _unaryop(self, module, scope, node):
        value = self.value(module, scope, node.operand)
        if value is UNKNOWN:
            return value
        return not value if isinstance(node.op, ast.Not) else -value

    def _binop(self, module, scope, node):
        left, right = self.value(module, scope, node.left), self.value(module, scope, node.right)
        if isinstance(left, Unknown) or isinstance(right, Unknown):
            return UNKNOWN
        made = {ast.Add: lambda: left + right, ast.Mult: lambda: left * right, ast.Sub: lambda: left - right,
                ast.FloorDiv: lambda: left // right, ast.Div: lambda: left / right, ast.Pow: lambda: left ** right,
                ast.Mod: lambda: left % right}.get(type(node.op))
        return made() if made else UNKNOWN

    def _compare(self, module, scope, node):
        left, right = self.value(module, scope, node.left), self.value(module, scope, node.comparators[0])
        if isinstance(left, Unknown) or isinstance(right, Unknown) or len(node.ops) > 1:
            return UNKNOWN
        made = {ast.Eq: lambda: left == right, ast.NotEq: lambda: left != right, ast.Is: lambda: left is right,
                ast.IsNot: lambda: left is not right, ast.In: lambda: left in right,
                ast.NotIn: lambda: left not in right, ast.Gt: lambda: left > right, ast.GtE: lambda: left >= right,
                ast.Lt: lambda: left < right, ast.LtE: lambda: left <= right}[type(node.ops[0])]
        return made()

    def _listcomp(self, module, scope, node):
        items = self.value(module, scope, node.generators[0].iter)
        if not isinstance(items, list | tuple | str) or node.generators[0].ifs:
            return UNKNOWN
        found = []
        for one in items:
            self.assign(module, scope, node.generators[0].target, one)
            found.append(self.value(module, scope, node.elt))
        return found

    _setcomp = _listcomp

    def _starred(self, module, scope, node):
        return self.value(module, scope, node.value)

    def _call(self, module, scope, node):
        args = []
        for one in node.args:
            value = self.value(module, scope, one)
            args += value if isinstance(one, ast.Starred) and isinstance(value, list | tuple) else [value]
        words = {}
        for one in node.keywords:
            value = self.value(module, scope, one.value)
            words |= {one.arg: value} if one.arg else value if isinstance(value, dict) else {}
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if isinstance(node.func, ast.Name) and name in _BUILTINS:
            return _BUILTINS[name](*args)
        if name == "with_name":
            return f"src/{module.name.rpartition('.')[0].replace('.', '/')}/{args[0]}"
        if name == "load_quantization_recipe":
            return self._quantized(args[0])
        held = self.value(module, scope, node.func)
        if isinstance(held, Method):
            return self._method(held, args, words)
        if isinstance(held, Found) and isinstance(held.node, ast.FunctionDef):
            if name == "get_mixed_precision_config":
                return self._precision(args[0])
            if name in ("set_cuda_graph_modules", "clear_cuda_graph_modules"):
                return self._graphs(*args)
            if name == "apply_flex_dispatcher_backend":
                return self._dispatcher(*args, **words)
            return self.call(held.module, held.node, args, words)
        if isinstance(held, Found):
            return Thing(name, self._fields(held.module, held.node) | words)
        return Thing(name, words) if name[:1].isupper() else UNKNOWN

    def _fields(self, module, node):
        """Defaults of a recipe's own dataclass, so far as they are literals; of others only what is given."""
        if not module.name.startswith("megatron.bridge.training.mixed_precision"):
            return {}
        return {line.target.id: self.value(module, {}, line.value) for line in node.body
                if isinstance(line, ast.AnnAssign) and line.value is not None}

    def _graphs(self, model, modules=()):
        """Names of modules, which utils/cuda_graph.py makes members of an enumeration."""
        names = modules.split(",") if isinstance(modules, str) else modules
        if isinstance(model, Thing):
            model.values["cuda_graph_scope"] = [one for one in names if one not in ("", "full")] if isinstance(
                names, list | tuple) else UNKNOWN

    def _dispatcher(self, model, moe_flex_dispatcher_backend=None):
        """training/flex_dispatcher_backend.py, for a model with experts and the GPU of the recipe's name.

        A published model's number of experts is not known here; only recipes of models with experts call it. GB200 and
        GB300 are no machines of DeepEP. Without a GPU in the name it is as on a machine that has none.
        """
        backend = moe_flex_dispatcher_backend
        if not isinstance(model, Thing) or backend not in ("deepep", "hybridep"):
            return
        if backend == "deepep" and self.gpu.startswith("gb"):
            model.values |= {"moe_token_dispatcher_type": "alltoall", "moe_flex_dispatcher_backend": None}
        else:
            model.values |= {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": backend,
                             "moe_shared_expert_overlap": False}

    def _quantized(self, path):
        """[pattern, recipe] of each matcher of a file of the package, in order; bf16 where a matcher has no recipe.

        Megatron-LM d98e8a64 `core/quantization/quant_config.py`, RecipeConfig.
        """
        text = self.package.files.get(path) if isinstance(path, str) else None
        if text is None:
            return UNKNOWN
        read, found = parse_document(text, path).data, []
        for matcher in read["matchers"].values():
            recipes = read["configs"][matcher["config"]]["training_recipe"]
            if not matcher.get("enabled"):
                continue
            if matcher["type"] != "glob" or set(recipes) - {"fp8_quantization_recipe", "fp4_quantization_recipe"}:
                return UNKNOWN
            found.append([matcher["pattern"], next(iter(recipes.values()), "bf16")])
        return found

    def _precision(self, given):
        if not isinstance(given, str):
            return given
        module = self.package.modules["megatron.bridge.training.mixed_precision"]
        function = module.defined.get(given.replace("-", "_"))
        return self.call(module, function, [], {}) if isinstance(function, ast.FunctionDef) else UNKNOWN

    def _method(self, held, args, words):
        if held.name == "from_hf_pretrained":
            return Thing("hf", {"hf_model_id": args[0] if args else words.get("pretrained_model_name_or_path")})
        if held.name == "from_pretrained" and args:  # a configuration of transformers; its language model has its own
            return Thing("config", {"text_config": Thing("config", {"hf_model_id": f"{args[0]} (text_config)"})})
        if held.name == "from_hf_config" and args and isinstance(args[0], Thing):
            return Thing("hf", {"hf_model_id": args[0].values.get("hf_model_id", UNKNOWN)})
        if held.name in OF_MODELS:
            return held.value
        if isinstance(held.value, dict) and held.name in ("get", "items", "keys", "values"):
            return list(getattr(held.value, held.name)(*args)) if held.name != "get" else held.value.get(*args)
        if isinstance(held.value, str) and held.name in ("lower", "upper", "replace", "startswith", "endswith",
                                                             "join"):
            return getattr(held.value, held.name)(*args)
        if isinstance(held.value, list) and held.name in ("append", "extend", "copy"):
            return getattr(held.value, held.name)(*args)
        return UNKNOWN


class Found:
    """A function or class, and the module that has it."""

    def __init__(self, module, node):
        self.module, self.node = module, node


class Name:
    """A name of another package, or one that is not found."""

    def __init__(self, module, name):
        self.module, self.name = module, name


class Method:
    """A method that is about to be called."""

    def __init__(self, value, name):
        self.value, self.name = value, name


def _has(thing, name):
    return name in thing.values if isinstance(thing, Thing) else UNKNOWN


def _get(thing, name, default=UNKNOWN):
    return thing.values.get(name, default) if isinstance(thing, Thing) else UNKNOWN


def _is(value, kind):
    if isinstance(kind, Name) and kind.name in ("str", "list", "tuple", "dict", "int"):
        return isinstance(value, {"str": str, "list": list, "tuple": list, "dict": dict, "int": int}[kind.name])
    return False if isinstance(kind, Found) and isinstance(value, str | int | list | dict | None) else UNKNOWN


def _set(thing, name, value):
    if isinstance(thing, Thing):
        thing.values[name] = value


_BUILTINS = {"hasattr": _has, "getattr": _get, "isinstance": _is, "setattr": _set, "list": lambda one=(): list(one),
             "len": len, "int": int, "str": str, "bool": bool, "max": max, "min": min, "cast": lambda kind, one: one,
             "deepcopy": lambda one: one, "tuple": lambda one=(): list(one), "range": lambda *n: list(range(*n))}
