// How fast a device is: from costs to time.
#pragma once
#include "ir/cost/Cost.h"
#include "llvm/Support/Error.h"
#include <map>

namespace recast::cost {

/// Measured times of one operator in one type, over the amount of its work: ascending, each amount once.
struct Curve {
  bool isPerFlop = false;                        ///< The amount is arithmetic operations; else bytes read and written.
  std::vector<std::pair<double, double>> points; ///< (amount, ns), at least one.
};

struct Profile {
  std::string machine;   ///< In words.
  int threads = 1;       ///< That it was measured with.
  double overheadNs = 0; ///< Of each step, whatever it does.
  double memoryGBs = 0;  ///< Of a plain copy, read and written.
  double movesGBs = 0;   ///< Of steps that place elements otherwise (transpose, gather, ...).
  /// Of copies between the device and its host (train.offload, train.fetch): bytes that cross, each counted once, and
  /// what one takes whatever its size. Where a file has neither, copies in one memory: half of memoryGBs, overheadNs.
  double hostGBs = 0, hostLatencyNs = 0;
  bool hostCopiesOverlap = false; ///< They go on beside the computation, one after another.
  /// Peaks by class and type; a type that is left out is as fast as f32. Each class but those that only move has f32.
  std::map<Work, std::map<std::string, double>> gflops;
  /// By operator ("MatMul", "recast::adamw") and type. Where there is one, it counts instead of the peaks.
  std::map<std::pair<std::string, std::string>, Curve> operators;
};

/// ir/cost/default-profile.json, which says where it was measured.
const Profile &defaultProfile();

/// The error says what is wrong at which key.
llvm::Expected<Profile> parseProfile(llvm::StringRef json);
/// The error names the file and says how to make one.
llvm::Expected<Profile> loadProfile(llvm::StringRef path);
/// JSON text, a line an operator.
std::string toJson(const Profile &profile);

/// "MatMul", "recast::adamw", "com.microsoft::FusedMatMul".
std::string operatorName(onnx_ir::Node node);

/// For a device whose memory is the host's: a copy there reads and writes each byte.
void setHostCopies(Profile &profile);

/// Nanoseconds of a copy between the device and its host.
double transferNs(int64_t bytes, const Profile &profile);

/// Nanoseconds of one run of an operator without bodies that costs `cost`: what was measured, interpolated, else the
/// overhead and the slower of its arithmetic at the peak of its class and its bytes. Nothing costs 0.
double timeNs(llvm::StringRef operatorName, const Cost &cost, const Profile &profile);
/// Of one run of `op`, bodies included. What is not known (Cost::known) counts 0.
double timeNs(mlir::Operation *op, const Profile &profile);

} // namespace recast::cost
