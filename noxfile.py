#!/usr/bin/env -S uv run --script
# /// script
# requires-python = ">=3.11"
# dependencies = ["nox>=2026.1", "uv>=0.12.2"]
# ///
"""Every check of the workspace, as data over the packages found on disk.

``nox`` runs the default sessions, which is what CI runs; ``nox -l`` lists all of them.
One package on one Python: ``nox -s "tests-3.12(etp-core)" -- -k rules``.
"""

import shutil
import tomllib
from collections.abc import Sequence
from pathlib import Path

import nox

nox.needs_version = ">=2026.1"
nox.options.default_venv_backend = "uv"

ROOT = Path(__file__).parent
DIST = ROOT / "dist"
PYTHONS = [line for line in (ROOT / ".python-version").read_text().split() if line]
DEFAULT, LOWEST = PYTHONS[0], min(PYTHONS)
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))
BENCHMARKS = [
    path
    for path in ["benchmarks", *(f"packages/{p}/benchmarks" for p in PACKAGES)]
    if any((ROOT / path).glob("**/bench_*.py"))
]
# Programs that one session compiled serve the next; the key of the cache holds the versions of JAX and XLA.
COMPILED = {
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".nox" / "compiled"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
# The thorough tests repeat one check over many models, operators or options. All tests run on the newest JAX; the
# oldest Python takes a third of the thorough ones, two more sessions half of the others each.
ALL = ("-m", "not property and not gpu and not soak")
PLAIN = ("-m", "not property and not gpu and not soak and not thorough")
SAMPLES = {
    DEFAULT: ALL,
    LOWEST: (*ALL, "--thorough-sample=3"),
    "other": (*PLAIN, "--sample=1/2"),
    "lowest": (*PLAIN, "--sample=2/2"),
}
# What of etp-algorithms' tests runs kernels where there are some, against the rules and against backpropagation.
KERNEL_TESTS = [f"packages/etp-algorithms/tests/test_{name}.py" for name in ("folding", "pp_prop", "algorithms", "zoo")]
each_package = nox.parametrize("package", PACKAGES, ids=PACKAGES)


# The checks of CI, cheap ones first.


@nox.session(python=DEFAULT)
def lint(session: nox.Session) -> None:
    """Format, style, and the arrows between the packages."""
    sync(session, "--only-group=lint")
    session.run("ruff", "format", "--check")
    session.run("ruff", "check")
    sources = [directory(package) / "src" for package in [*PACKAGES, "etp-suite"]]
    session.run("lint-imports", "--no-logo", env={"PYTHONPATH": ":".join(map(str, sources))})


@nox.session(python=DEFAULT)
def types(session: nox.Session) -> None:
    """Types inside the packages (pyright) and in their public API (verifytypes)."""
    sync(session, "--all-packages", "--all-extras", groups=["types"])
    session.run("pyright")
    for name in [*map(import_name, PACKAGES), "etp"]:
        session.run("pyright", "--ignoreexternal", "--verifytypes", name)


@nox.session(venv_backend="none")
def wheels(session: nox.Session) -> None:
    """Build every wheel and source distribution from published metadata alone; an index would take them as they are."""
    shutil.rmtree(DIST, ignore_errors=True)
    session.run("uv", "build", "--all-packages", "--no-sources", "--quiet", external=True)
    built = [str(path) for kind in ("*.whl", "*.tar.gz") for path in sorted(DIST.glob(kind))]
    session.run("uv", "tool", "run", "twine", "check", "--strict", *built, external=True)


@nox.session(python=DEFAULT, requires=["wheels"])
@nox.parametrize("package", [*PACKAGES, "etp-suite"], ids=[*PACKAGES, "etp-suite"])
def install(session: nox.Session, package: str) -> None:
    """Install one wheel as a user would, alone and with its extras, and import every module."""
    # uv keeps a wheel it found in a folder by name and version, and so would install another build's.
    fresh = [f"--refresh-package={name}" for name in [*PACKAGES, "etp-suite"]]
    (wheel,) = DIST.glob(f"{package.replace('-', '_')}-*.whl")
    cases = {"": []}
    if extras := ",".join(project(package).get("optional-dependencies", {})):
        cases[f"[{extras}]"] = ["--strict"]
    for suffix, options in cases.items():
        session.install("--no-sources", *fresh, f"--find-links={DIST}", f"{package}{suffix} @ {wheel.as_uri()}")
        session.run("uv", "pip", "check")
        session.run("python", "-I", ".ci/import_all.py", import_name(package), *options)


@nox.session(python=sorted(PYTHONS), allow_parallel=True)
@each_package
def tests(session: nox.Session, package: str) -> None:
    """The tests of one package, with nothing installed but what it declares."""
    sync(session, "--package", package, groups=["test"])
    session.run("uv", "pip", "check")
    run_tests(session, package, *session.posargs, sample=SAMPLES.get(str(session.python), SAMPLES["other"]))


@nox.session(python=LOWEST, allow_parallel=True)
@each_package
def lowest(session: nox.Session, package: str) -> None:
    """The same tests on the lowest versions that the package accepts."""
    path = f"packages/{package}"
    test_group = f"--group={path}/pyproject.toml:test"
    session.install("--resolution=lowest-direct", f"--reinstall-package={package}", f"./{path}", test_group)
    run_tests(session, package, *session.posargs, sample=SAMPLES["lowest"])


@nox.session(python=DEFAULT)
def kernels(session: nox.Session) -> None:
    """Tests of etp-algorithms with the kernels of etp-fastpath in place of the rules."""
    sync(session, "--package", "etp-algorithms", "--package", "etp-fastpath", groups=["test"])
    env = {**COMPILED, "ETP_KERNELS": "etp_fastpath"}
    session.run("pytest", *KERNEL_TESTS, *(session.posargs or [*ALL, "--sample=1/7"]), env=env)


@nox.session(python=DEFAULT)
def workspace(session: nox.Session) -> None:
    """The workspace as a whole: layout, public API, import cost, examples, READMEs, benchmarks once."""
    sync(session, "--all-packages", "--all-extras", groups=["bench", "examples"])
    session.run("pytest", "tests", *session.posargs)
    if BENCHMARKS and not session.posargs:
        run_benchmarks(session, "--benchmark-disable")


@nox.session(python=DEFAULT)
def docs(session: nox.Session) -> None:
    """Build the documentation; its notebooks run, and a warning is an error."""
    sync(session, "--all-packages", "--all-extras", groups=["docs"])
    session.run("sphinx-build", "-E", "-W", "-n", "--keep-going", "-q", "docs", "docs/_build/html")


@nox.session(python=DEFAULT, requires=["docs"])
def browser(session: nox.Session) -> None:
    """Read the built documentation in a browser, if the machine has one; check its links in any case."""
    sync(session, "--only-group=browser")
    without_jax = ("-o", "addopts=--import-mode=importlib -ra")
    session.run("pytest", "tests/test_site.py", *without_jax, *session.posargs, env={"ETP_SITE": "docs/_build/html"})


# On request.


@nox.session(name="property", python=DEFAULT, default=False)
@each_package
def property_(session: nox.Session, package: str) -> None:
    """Property tests with many more examples."""
    sync(session, "--package", package, groups=["test"])
    run_tests(session, package, "-m", "property", *session.posargs)


@nox.session(python=DEFAULT, default=False)
def bench(session: nox.Session) -> None:
    """Gradients beside another library, in pieces: ``nox -s bench -- --peer ENVIRONMENT/bin/python --minutes 25``."""
    sync(session, "--all-packages", "--all-extras", groups=["bench", "examples"])
    session.run("python", "benchmarks/gradients.py", "--plot=docs/_static/gradients.svg", *session.posargs)


@nox.session(python=DEFAULT, default=False)
def timings(session: nox.Session) -> None:
    """Single timings with pytest-benchmark; keep one with ``-- --benchmark-save=NAME``."""
    sync(session, "--all-packages", "--all-extras", groups=["bench", "examples"])
    run_benchmarks(session, *session.posargs)


@nox.session(python=DEFAULT, default=False)
def gpu(session: nox.Session) -> None:
    """The tests that need an accelerator, on a machine that has one."""
    sync(session, "--package", "etp-fastpath", groups=["test"])
    session.install("jax[cuda12]")
    run_tests(session, "etp-fastpath", "-m", "gpu", *session.posargs)


@nox.session(python=DEFAULT, default=False)
def soak(session: nox.Session) -> None:
    """Minutes of asynchronous running: leaks, drift, lost updates."""
    sync(session, "--package", "mujou-pc", groups=["test"])
    run_tests(session, "mujou-pc", "-m", "soak", *session.posargs)


@nox.session(python=DEFAULT, default=False)
def gallery(session: nox.Session) -> None:
    """Run the examples in full and keep what they print and draw for the gallery: ``nox -s gallery -- pc_conv``."""
    sync(session, "--all-packages", "--all-extras", groups=["examples"])
    session.run("python", ".ci/gallery.py", *session.posargs)


@nox.session(python=DEFAULT, default=False)
def api(session: nox.Session) -> None:
    """Write tests/public_api.txt and public_signatures.txt anew after a public name or a signature changed."""
    sync(session, "--all-packages", "--all-extras", groups=["test"])
    session.run("python", "tests/public_api.py", "--write")


@nox.session(venv_backend="none", default=False)
def constraints(session: nox.Session) -> None:
    """Write constraints.txt anew: names and versions of what was tested last."""
    what = ["--all-packages", "--all-extras", "--all-groups", "--output-file=constraints.txt"]
    bare = ["--no-hashes", "--no-emit-workspace", "--no-annotate", "--no-header", "--quiet"]
    session.run("uv", "export", *what, *bare, external=True)


@nox.session(python=DEFAULT, default=False)
def release(session: nox.Session) -> None:
    """Prepare a release of one package: ``nox -s release -- etp-core minor``."""
    session.run("python", ".ci/release.py", *session.posargs)
    package, _ = session.posargs
    version = project(package)["version"]
    for dependant in [package, *dependants(package)]:
        sync(session, "--package", dependant, groups=["test"])
        session.run("uv", "pip", "check")
        run_tests(session, dependant)
    session.run("uv", "build", "--package", package, "--no-sources", "--clear")
    session.log(f"Commit, then: git tag {package}-v{version} && git push origin {package}-v{version}")


# Shared by the sessions.


def sync(session: nox.Session, *what: str, groups: Sequence[str] = ()) -> None:
    """Make the session's environment hold exactly these packages and dependency groups."""
    options = ["--exact", "--no-default-groups", "--quiet", f"--python={python(session)}"]
    options += [f"--group={group}" for group in groups]
    environment = {"UV_PROJECT_ENVIRONMENT": session.virtualenv.location}
    session.run_install("uv", "sync", *options, *what, env=environment)


def run_tests(session: nox.Session, package: str, *options: str, sample: Sequence[str] = ALL) -> None:
    """Run a package's tests, a sample of them or as the options say; without options the examples in docstrings too."""
    chosen = () if options else sample
    session.run("pytest", f"packages/{package}/tests", *chosen, *options, env=COMPILED)
    if not options:
        session.run("pytest", "--doctest-modules", "--pyargs", import_name(package), success_codes=[0, 5])


def run_benchmarks(session: nox.Session, *options: str) -> None:
    """Run every bench_*.py; with ``--benchmark-disable`` once each, to see that it works."""
    session.run("pytest", "-o", "python_files=bench_*.py", *BENCHMARKS, *options)


def directory(package: str) -> Path:
    return ROOT if package == "etp-suite" else ROOT / "packages" / package


def project(package: str) -> dict:
    return tomllib.loads((directory(package) / "pyproject.toml").read_text())["project"]


def import_name(package: str) -> str:
    return "etp" if package == "etp-suite" else package.replace("-", "_")


def dependants(package: str) -> list[str]:
    """The members that name this package in their requirements."""
    return [p for p in PACKAGES if any(d.startswith(package) for d in project(p)["dependencies"])]


def python(session: nox.Session) -> str:
    return str(Path(session.bin) / "python")


if __name__ == "__main__":
    nox.main()
