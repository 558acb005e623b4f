"""Imports the app that MODULE:APP names. Each error is one sentence that says what to do."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

from onward.app.application import Onward
from onward.config import variable
from onward.errors import UsageError


def load(target: str, db: str | None) -> Onward:
    """Import the app that MODULE:APP names. It uses the database `db` if that is given, else its own."""
    module_name, name = _split(target)
    if db is not None:
        os.environ[variable("db")] = db  # the module may open the database while it is imported
    app = _app_in(_import_module(module_name), module_name, name)
    if db is not None and app.settings.db != db:
        app.move(db)
    return app


def _split(target: str) -> tuple[str, str]:
    module, colon, name = target.partition(":")
    if module.endswith(".py") or "/" in module or "\\" in module:
        dotted = module.removesuffix(".py").replace("\\", "/").strip("./").replace("/", ".")
        raise UsageError(f"{target!r} is a file; name the module instead: {dotted}:{name or 'app'}")
    if not colon or not module or not name:
        raise UsageError(f"{target!r} must name a module and the app in it, as in {module or 'shop.tasks'}:app")
    return module, name


def _import_module(name: str) -> ModuleType:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # the script `onward` is elsewhere; the module is in the current folder
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(
                f"there is no module {error.name!r} here; run onward in the folder that holds it, or set PYTHONPATH"
            ) from None
        raise _import_error(name, error) from error
    except (Exception, SystemExit) as error:
        raise _import_error(name, error) from error


def _import_error(name: str, error: BaseException) -> UsageError:
    cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return UsageError(f"importing {name!r} failed{_where(error)} with {cause}; fix that, then start again")


def _where(error: BaseException) -> str:
    """The last line of the traceback outside of the import machinery."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" at {error.filename}:{error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    own = [f for f in frames if f.filename not in {__file__, importlib.__file__}]
    return f" at {own[-1].filename}:{own[-1].lineno}" if own else ""


def _app_in(module: ModuleType, module_name: str, name: str) -> Onward:
    apps = [key for key, value in vars(module).items() if isinstance(value, Onward)]
    app = getattr(module, name, None)
    if isinstance(app, Onward):
        return app
    near = difflib.get_close_matches(name, apps, n=1, cutoff=0) or ["app"]
    advice = f"did you mean {module_name}:{near[0]}?" if apps else f"write `{name} = Onward()` there"
    if app is None:
        raise UsageError(f"module {module_name!r} has no {name!r}; {advice}")
    raise UsageError(f"{module_name}:{name} is of type {type(app).__name__}, not an Onward app; {advice}")
