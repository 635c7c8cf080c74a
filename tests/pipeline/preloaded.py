"""Spark's Python, where the process that forks its workers imports what each of them would: 0.5 s each.

It is started as `python -m pyspark.daemon` and the worker's module.
"""

import gc
import importlib
import os
import runpy
import sys

if sys.argv[1] != "-m":
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
_, _, module, *words = sys.argv
if module == "pyspark.daemon":
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a thread would not outlive the fork
    for name in (*(words[:1] or ["pyspark.worker"]), "pyarrow", "brokers.pipeline.source.data_source"):
        importlib.import_module(name)
    gc.freeze()
sys.argv = [module, *words]
runpy.run_module(module, run_name="__main__", alter_sys=True)
