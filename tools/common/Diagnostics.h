// What the tools share: how errors are printed, and the exit codes of the contract.
#pragma once
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/MLIRContext.h"
#include "tools/common/ExitCodes.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/raw_ostream.h"
#include <cstdio>
#include <cstdlib>

namespace recast::tools {

/// Prints diagnostics as one line each, "<tool>: error: <text>"; notes follow indented.
class DiagnosticPrinter {
public:
  DiagnosticPrinter(mlir::MLIRContext &context, llvm::StringRef tool)
      : handler(&context, [tool = tool.str()](mlir::Diagnostic &diagnostic) {
          llvm::StringRef kind = diagnostic.getSeverity() == mlir::DiagnosticSeverity::Error     ? "error"
                                 : diagnostic.getSeverity() == mlir::DiagnosticSeverity::Warning ? "warning"
                                                                                                 : "remark";
          llvm::errs() << tool << ": " << kind << ": " << diagnostic.str() << '\n';
          for (mlir::Diagnostic &note : diagnostic.getNotes())
            llvm::errs() << "  note: " << note.str() << '\n';
        }) {
    context.printOpOnDiagnostic(false); // the text names the node; printing a graph would bury it
  }

private:
  mlir::ScopedDiagnosticHandler handler;
};

/// Prints an error in the same form and gives the exit code for it.
inline int fail(llvm::StringRef tool, const llvm::Twine &text, int code = kFailed) {
  llvm::errs() << tool << ": error: " << text << '\n';
  return code;
}

/// Ends the process without destructors.
[[noreturn]] inline void finish(int code) {
  llvm::outs().flush();
  llvm::errs().flush();
  std::fflush(nullptr);
  std::_Exit(code);
}

/// Parses the command line; wrong usage prints an error and gives false (exit with kUsage). `--help` shows the options
/// of `category` and ends with the example. `example` must outlive the program's options: a literal.
inline bool parseCommandLine(int argc, char **argv, llvm::cl::OptionCategory &category, llvm::StringRef overview,
                             llvm::StringLiteral example) {
  llvm::cl::HideUnrelatedOptions(category);
  llvm::cl::extrahelp help(example);
  return llvm::cl::ParseCommandLineOptions(argc, argv, overview, &llvm::errs());
}

} // namespace recast::tools
