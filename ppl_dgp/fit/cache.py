"""JAX's own persistent compilation cache, on unless the user has decided otherwise."""

import os
import platform
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache


def keep_compiled() -> Path | None:
    """Have JAX keep what it compiles for the next process, in the user's cache directory; gives the folder.

    Nothing is changed, and None given, where the user has named a folder (``JAX_COMPILATION_CACHE_DIR``), turned the
    cache off (``JAX_ENABLE_COMPILATION_CACHE=false``), or has no cache directory to write to. Each machine has a folder
    of its own, for a home may be shared by processors that differ.
    """
    values = jax.config.values
    if values["jax_compilation_cache_dir"] or not values["jax_enable_compilation_cache"]:
        return None
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = base / "ppl_dgp" / "compiled" / (platform.node() or "here")
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home
        return None
    if not os.access(folder, os.W_OK):
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # the many small programs of a first fit take as long together as the large one
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # JAX looks once whether there is a cache, and may have compiled before
    compilation_cache.reset_cache()
    return folder
