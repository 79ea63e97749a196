#include "ir/io/Load.h"
#include "ir/io/Save.h"
#include "tools/common/Diagnostics.h"
using namespace recast;
namespace cl = llvm::cl;
static cl::opt<std::string> input(cl::Positional, cl::Required), output("o"), emitKind("emit");
static cl::opt<bool> allowUnknown("allow-unknown");
int main(int argc, char **argv) {
  if (!tools::parseCommandLine(argc, argv, "x", "recast-opt"))
    return 2;
  mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
  tools::DiagnosticPrinter printer(context, "recast-opt");
  auto module = io::loadModel(context, input, {allowUnknown});
  if (!module)
    return 1;
  if (auto error = io::saveModel(*module, output, input))
    return tools::fail("recast-opt", llvm::toString(std::move(error)));
  _exit(0);
}
