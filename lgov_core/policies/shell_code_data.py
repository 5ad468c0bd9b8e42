"""Data in Python on a command line: pandas, numpy, pictures and YAML, from files that it names to files that it names."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import NoReturn

from lgov_core.policies.options import names
from lgov_core.policies.shell_code_files import Files
from lgov_core.policies.shell_places import Refused

_NUMPY = """
    array arange linspace zeros ones full eye identity empty zeros_like ones_like asarray mean median std var sum prod min max
    argmin argmax argsort sort unique where clip round abs sqrt exp log log2 log10 sin cos tan dot matmul cross outer
    concatenate load stack vstack hstack isnan isinf isfinite nan inf pi e allclose array_equal percentile quantile histogram
    bincount cumsum cumprod diff random linalg fft float32 float64 int8 int16 int32 int64 uint8 bool_ loadtxt genfromtxt savetxt
    save nanmean nansum nanmax nanmin corrcoef cov polyfit polyval interp meshgrid reshape transpose set_printoptions
"""
_PANDAS = """
    DataFrame Series Timestamp Timedelta to_datetime to_numeric to_timedelta date_range concat merge cut qcut crosstab
    pivot_table get_dummies isna notna NA NaT unique value_counts melt read_csv read_json read_parquet read_excel read_table
    read_feather set_option options display
"""
_TORCH = """
    cuda version backends tensor rand randn zeros ones arange eye manual_seed matmul device float16 bfloat16 float32 float64
    int32 int64 mean sum std
"""
_PYPLOT = """
    plot scatter bar barh hist boxplot title xlabel ylabel xlim ylim legend grid figure subplots subplot tight_layout savefig
    close imshow colorbar axhline axvline fill_between errorbar pie xticks yticks suptitle annotate text
"""
#: Modules by what may be asked of them; nothing else of these is reached.
DATA_MODULES: dict[str, frozenset[str]] = {
    "numpy": frozenset(names(_NUMPY)),
    "pandas": frozenset(names(_PANDAS)),
    "torch": frozenset(names(_TORCH)),
    "matplotlib": frozenset({"use"}),
    "yaml": frozenset(names("safe_load safe_load_all safe_dump dump")),
    "matplotlib.pyplot": frozenset(names(_PYPLOT)),
}
#: What may be asked of a table, a column, an array, a text or a list.
_METHODS = frozenset(
    names(
        _NUMPY
        + _PYPLOT
        + """
    head tail sample describe info shape columns index dtypes dtype values size ndim T loc iloc at iat groupby agg aggregate
    apply transform sort_values sort_index drop dropna fillna drop_duplicates duplicated rename reset_index set_index
    value_counts nunique unique isin isna isnull notna notnull between astype map merge join pivot pivot_table melt stack
    unstack nlargest nsmallest count first last cumsum cumcount rank corr shift rolling expanding resample diff pct_change
    quantile idxmax idxmin any all copy items iterrows itertuples tolist to_list to_dict to_string to_numpy item str dt
    contains startswith endswith lower upper strip lstrip rstrip replace split rsplit extract len slice year month day hour
    date dayofweek total_seconds memory_usage assign where mask clip select_dtypes explode append extend keys get add update
    pop insert remove format join title find rfind splitlines isdigit zfill encode decode flatten ravel squeeze T reshape
    read write rand randn randint normal uniform choice shuffle seed default_rng permutation norm inv det eig solve
    is_available device_count get_device_name get_device_capability mem_get_info memory_allocated current_device cuda
    mps cudnn hip max_rows max_columns display width group groups match search findall sub
    add_subplot set_title set_xlabel set_ylabel set_xlim set_ylim twinx get_figure plot line
    to_period to_timestamp strftime floor ceil normalize tz_localize tz_convert isocalendar quarter weekday dayofyear
    day_name month_name asfreq interpolate bfill ffill ewm skew kurt mode cov cummax cummin add_prefix add_suffix
    to_csv to_json to_parquet to_excel to_feather to_markdown
    """
    )
)
_READING = frozenset(
    names("read_csv read_json read_parquet read_excel read_table read_feather loadtxt genfromtxt load")
)
_WRITING = frozenset(names("to_csv to_json to_parquet to_excel to_feather to_markdown to_string savefig savetxt save"))
#: Settings of these that name no file and run nothing.
_SETTINGS = frozenset(
    names(
        """
    sep header names index index_col usecols dtype nrows skiprows encoding parse_dates low_memory na_values lines
    orient columns sheet_name comment quotechar thousands decimal indent dpi bbox_inches float_format na_rep date_format
    skip_header delimiter fmt transparent facecolor force_ascii tablefmt
    """
    )
)
#: Methods that take the name of another method.
_NAMING = frozenset({"agg", "aggregate", "apply", "transform", "map", "pivot_table", "crosstab"})
_NAMED = frozenset(names("sum mean count min max std var median first last size nunique any all prod"))


def check_data(tree: ast.Module, modules: Mapping[str, str], settled: set[int], files: Files) -> bool:
    """Whether the program uses modules of data, and then nothing of them, or of what they make, that it may not.

    Raises `Refused`. ``settled`` are the nodes (by id) that were judged already.
    """
    used = {name: DATA_MODULES[module] for name, module in modules.items() if module in DATA_MODULES}
    mentioned = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in used and id(n) not in settled]
    if not mentioned:
        return False
    asked = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    if any(id(node) not in asked for node in mentioned):
        refuse("a module for a value")
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or id(node) in settled:
            continue
        of_module = isinstance(node.value, ast.Name) and node.value.id in modules
        allowed = used.get(node.value.id) if of_module and isinstance(node.value, ast.Name) else _METHODS
        if allowed is not None and node.attr not in allowed:
            refuse(f".{node.attr}")
        if node.attr in _READING | _WRITING | _NAMING:
            _check_call(node, calls.get(id(node)), files)
    return True


def _check_call(node: ast.Attribute, call: ast.Call | None, files: Files) -> None:
    if call is None:
        refuse(f".{node.attr} without a call")
    if node.attr in _NAMING:
        ahead = 3 if node.attr in ("pivot_table", "crosstab") else 0  # names of columns
        for argument in (
            *call.args[ahead:],
            *(keyword.value for keyword in call.keywords if keyword.arg in (None, "func", "aggfunc")),
        ):
            if not _plain_function(argument):
                refuse(f".{node.attr} with a function that is not written out")
        if any(keyword.arg is None or keyword.arg == "args" for keyword in call.keywords):
            refuse(f".{node.attr} with such settings")
        return
    if any(keyword.arg not in _SETTINGS for keyword in call.keywords):
        refuse(f".{node.attr} with such settings")
    first = call.args[0] if call.args else None
    if first is None:
        return  # it gives its text back
    if not isinstance(first, ast.Constant) or not isinstance(first.value, str) or "://" in first.value:
        refuse(f".{node.attr} of anything but a file named in the text")
    if node.attr in _READING:
        files.reads(first.value)
    else:
        files.writes(first.value)


def _plain_function(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return node.value in _NAMED or isinstance(node.value, int)
    if isinstance(node, ast.List | ast.Tuple):
        return all(_plain_function(item) for item in node.elts)
    if isinstance(node, ast.Dict):
        return all(_plain_function(value) for value in node.values) or _maps_plain_values(node)
    return isinstance(node, ast.Lambda)


def _maps_plain_values(node: ast.Dict) -> bool:
    """Whether a dict maps numbers: names of methods are texts."""
    return all(isinstance(value, ast.Constant) and not isinstance(value.value, str) for value in node.values)


def refuse(what: str | None) -> NoReturn:
    """Raises `Refused` for Python that does more than it may."""
    raise Refused("shell-code", f"python: {what} is not allowed on the command line; put the program into a file.")
