# Tests of the tools' text: IR before and after a pass, errors, printed explanations.
import os

import lit.formats

config.name = "recast"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir", ".test"]
config.excludes = ["Inputs"]
config.test_source_root = os.path.dirname(__file__)
config.test_exec_root = config.build_dir
config.environment["PATH"] = os.pathsep.join([config.tools_dir, config.llvm_tools_dir, config.environment["PATH"]])
config.substitutions += [("%python", config.python), ("%corpus", config.corpus),
                         ("%inputs", os.path.join(config.test_source_root, "Inputs"))]
