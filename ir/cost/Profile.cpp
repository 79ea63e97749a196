#include "ir/cost/Profile.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"
#include <charconv>
#include <cmath>

namespace recast::cost {

namespace {

constexpr llvm::StringLiteral kDefaultProfile =
#include "ir/cost/DefaultProfile.inc"
    ;

constexpr Work kComputes[] = {Work::Product, Work::Convolution, Work::Elementwise, Work::Reduction};

using llvm::json::ObjectMapper;
using llvm::json::Path;
using llvm::json::Value;

/// The fewest digits that are read as the same number.
std::string shortest(double number) {
  char text[32];
  return std::string(text, std::to_chars(text, std::end(text), number).ptr);
}

bool readPositive(const Value &value, double &out, Path path) {
  auto number = value.getAsNumber();
  if (!number || !(*number > 0) || !std::isfinite(*number)) {
    path.report("a number above 0 is needed");
    return false;
  }
  out = *number;
  return true;
}

bool readPositive(const llvm::json::Object &object, llvm::StringRef key, double &out, Path path) {
  const Value *value = object.get(key);
  if (!value) {
    path.field(key).report("this number is missing");
    return false;
  }
  return readPositive(*value, out, path.field(key));
}

bool readPeaks(const Value &value, Profile &profile, Path path) {
  const llvm::json::Object *classes = value.getAsObject();
  for (Work work : kComputes) {
    llvm::StringRef name = workName(work);
    const llvm::json::Object *types = classes ? classes->getObject(name) : nullptr;
    if (!types || !types->get("f32")) {
      path.field(name).report("a peak for f32 is missing");
      return false;
    }
    for (const auto &[type, peak] : *types)
      if (!readPositive(peak, profile.gflops[work][type.str()], path.field(name).field(type)))
        return false;
  }
  return true;
}

bool readPoints(const Value &value, Curve &curve, Path path) {
  const llvm::json::Array *points = value.getAsArray();
  if (!points || points->empty()) {
    path.report("pairs of an amount and nanoseconds are needed");
    return false;
  }
  for (size_t i = 0; i < points->size(); ++i) {
    const llvm::json::Array *pair = (*points)[i].getAsArray();
    double amount, ns;
    if (!pair || pair->size() != 2) {
      path.index(i).report("a pair of an amount and nanoseconds is needed");
      return false;
    }
    if (!readPositive((*pair)[0], amount, path.index(i)) || !readPositive((*pair)[1], ns, path.index(i)))
      return false;
    if (!curve.points.empty() && amount <= curve.points.back().first) {
      path.index(i).report("amounts must ascend");
      return false;
    }
    curve.points.emplace_back(amount, ns);
  }
  return true;
}

bool readOperator(const Value &value, Profile &profile, Path path) {
  ObjectMapper entry(value, path);
  std::string name, type, per;
  if (!entry || !entry.map("operator", name) || !entry.map("type", type) || !entry.map("per", per))
    return false;
  if (per != "flop" && per != "byte") {
    path.field("per").report("flop or byte is needed");
    return false;
  }
  const Value *points = value.getAsObject()->get("points");
  Curve curve{per == "flop", {}};
  if (!readPoints(points ? *points : Value(nullptr), curve, path.field("points")))
    return false;
  if (!profile.operators.try_emplace({name, type}, std::move(curve)).second) {
    path.report("an operator and type that was there before");
    return false;
  }
  return true;
}

bool read(const Value &value, Profile &profile, Path path) {
  ObjectMapper fields(value, path);
  int64_t version = 0, threads = 0;
  if (!fields || !fields.map("version", version) || !fields.map("machine", profile.machine) ||
      !fields.map("threads", threads))
    return false;
  if (version != 1) {
    path.field("version").report("this is no version 1 profile");
    return false;
  }
  profile.threads = static_cast<int>(threads);
  const llvm::json::Object &object = *value.getAsObject();
  if (!readPositive(object, "step_overhead_ns", profile.overheadNs, path) ||
      !readPositive(object, "memory_gb_per_s", profile.memoryGBs, path) ||
      !readPositive(object, "moves_gb_per_s", profile.movesGBs, path))
    return false;
  setHostCopies(profile);
  if ((object.get("host_gb_per_s") || object.get("host_latency_ns")) &&
      (!readPositive(object, "host_gb_per_s", profile.hostGBs, path) ||
       !readPositive(object, "host_latency_ns", profile.hostLatencyNs, path)))
    return false;
  if (!fields.mapOptional("host_copies_overlap", profile.hostCopiesOverlap))
    return false;
  const Value *peaks = object.get("peaks_gflop_per_s");
  if (!readPeaks(peaks ? *peaks : Value(nullptr), profile, path.field("peaks_gflop_per_s")))
    return false;
  const llvm::json::Array *operators = object.getArray("operators");
  for (size_t i = 0; operators && i < operators->size(); ++i)
    if (!readOperator((*operators)[i], profile, path.field("operators").index(i)))
      return false;
  return true;
}

/// A line through the neighbours; from the overhead up to the first; beyond the last as steep as all of it.
double interpolate(const Curve &curve, double amount, double overheadNs) {
  const auto &points = curve.points;
  auto line = [&](std::pair<double, double> a, std::pair<double, double> b) {
    return a.second + (b.second - a.second) * (amount - a.first) / (b.first - a.first);
  };
  std::pair<double, double> origin(0, std::min(overheadNs, points.front().second));
  auto after = llvm::lower_bound(points, std::pair(amount, 0.0));
  if (after == points.begin())
    return line(origin, points.front());
  if (after != points.end())
    return line(*std::prev(after), *after);
  std::pair<double, double> first = points.size() > 1 ? points.front() : origin;
  double slope = (points.back().second - first.second) / (points.back().first - first.first);
  return points.back().second + std::max(slope, 0.0) * (amount - points.back().first);
}

const Curve *findCurve(const Profile &profile, llvm::StringRef name, llvm::StringRef type) {
  auto found = profile.operators.find({name.str(), type.str()});
  if (found == profile.operators.end() && (type == "f8" || type == "tf32"))
    found = profile.operators.find({name.str(), "f32"}); // as the CPU runs them
  return found == profile.operators.end() ? nullptr : &found->second;
}

} // namespace

llvm::Expected<Profile> parseProfile(llvm::StringRef json) {
  auto value = llvm::json::parse(json);
  if (!value)
    return value.takeError();
  Profile profile;
  Path::Root root("profile");
  if (!read(*value, profile, root))
    return root.getError();
  return profile;
}

llvm::Expected<Profile> loadProfile(llvm::StringRef path) {
  auto fail = [&](const llvm::Twine &text) {
    return llvm::createStringError(path + ": " + text + "; recast-opt --calibrate=FILE.json measures a profile");
  };
  auto buffer = llvm::MemoryBuffer::getFile(path, /*IsText=*/true);
  if (!buffer)
    return fail(buffer.getError().message());
  auto profile = parseProfile((*buffer)->getBuffer());
  if (!profile)
    return fail("is no cost profile: " + llvm::toString(profile.takeError()));
  return profile;
}

const Profile &defaultProfile() {
  static const Profile profile = llvm::cantFail(parseProfile(kDefaultProfile));
  return profile;
}

std::string toJson(const Profile &profile) {
  std::string text;
  llvm::raw_string_ostream out(text);
  out << "{\n \"version\": 1,\n \"machine\": " << Value(profile.machine) << ",\n \"threads\": " << profile.threads
      << ",\n \"step_overhead_ns\": " << shortest(profile.overheadNs)
      << ",\n \"memory_gb_per_s\": " << shortest(profile.memoryGBs)
      << ",\n \"moves_gb_per_s\": " << shortest(profile.movesGBs)
      << ",\n \"host_gb_per_s\": " << shortest(profile.hostGBs)
      << ",\n \"host_latency_ns\": " << shortest(profile.hostLatencyNs)
      << (profile.hostCopiesOverlap ? ",\n \"host_copies_overlap\": true" : "") << ",\n \"peaks_gflop_per_s\": {";
  llvm::ListSeparator nextClass(",");
  for (const auto &[work, types] : profile.gflops) {
    out << nextClass << "\n  " << Value(workName(work)) << ": {";
    llvm::ListSeparator nextType;
    for (const auto &[type, peak] : types)
      out << nextType << Value(type) << ": " << shortest(peak);
    out << "}";
  }
  out << "\n },\n \"operators\": [";
  llvm::ListSeparator nextOperator(",");
  for (const auto &[key, curve] : profile.operators) {
    out << nextOperator << "\n  {\"operator\": " << Value(key.first) << ", \"type\": " << Value(key.second)
        << ", \"per\": \"" << (curve.isPerFlop ? "flop" : "byte") << "\", \"points\": [";
    llvm::ListSeparator nextPoint;
    for (auto [amount, ns] : curve.points)
      out << nextPoint << "[" << shortest(amount) << ", " << shortest(ns) << "]";
    out << "]}";
  }
  out << "\n ]\n}\n";
  return text;
}

std::string operatorName(onnx_ir::Node node) {
  return ((node.domain().empty() ? "" : node.domain() + "::") + node.opType()).str();
}

void setHostCopies(Profile &profile) {
  profile.hostGBs = profile.memoryGBs / 2;
  profile.hostLatencyNs = profile.overheadNs;
}

double transferNs(int64_t bytes, const Profile &profile) {
  return profile.hostLatencyNs + static_cast<double>(bytes) / profile.hostGBs;
}

double timeNs(llvm::StringRef operatorName, const Cost &cost, const Profile &profile) {
  if (cost.work == Work::Nothing || cost.work == Work::Control)
    return 0;
  if (operatorName == "recast::offload" || operatorName == "recast::fetch")
    return transferNs(cost.bytesRead, profile);
  if (const Curve *curve = findCurve(profile, operatorName, cost.arithmetic))
    return interpolate(*curve, static_cast<double>(curve->isPerFlop ? cost.flops : cost.bytes()), profile.overheadNs);
  double arithmeticNs = 0;
  if (auto peaks = profile.gflops.find(cost.work); peaks != profile.gflops.end()) {
    auto peak = peaks->second.find(cost.arithmetic.str());
    arithmeticNs =
        static_cast<double>(cost.flops) / (peak != peaks->second.end() ? peak->second : peaks->second.at("f32"));
  }
  bool isMove = cost.work == Work::Move || cost.work == Work::Unknown;
  double bytesNs = static_cast<double>(cost.bytes()) / (isMove ? profile.movesGBs : profile.memoryGBs);
  return profile.overheadNs + std::max(arithmeticNs, bytesNs);
}

double timeNs(mlir::Operation *op, const Profile &profile) {
  double total = 0;
  if (onnx_ir::isNode(op))
    visitParts(op, [&](mlir::Operation *part, const Cost &cost, int64_t times) {
      if (cost.known != Known::OpenSizes)
        total += static_cast<double>(times) * timeNs(operatorName(part), cost, profile);
    });
  return total;
}

} // namespace recast::cost
