// --memory --html: the arena as a picture, one rectangle a buffer: steps to the right, offsets upward.
#include "passes/checkpoint/Budget.h"
#include "tools/common/FactsPage.h"
#include "tools/recast-inspect/Inspect.h"
#include "llvm/Support/FormatVariadic.h"

namespace recast::inspect {

namespace {

using tools::escapeHtml;

constexpr double kWidth = 1100, kHeight = 420, kLeft = 70, kBottom = 30;
constexpr size_t kListed = 40;

/// The same name has the same colour in every picture.
unsigned hueOf(llvm::StringRef name) {
  unsigned hash = 2166136261u; // FNV-1a
  for (char c : name)
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash % 360;
}

void drawArena(const llvm::json::Object &facts, llvm::raw_ostream &out) {
  const llvm::json::Array &steps = *facts.getArray("steps");
  const auto arena = static_cast<double>(*facts.getInteger("arena"));
  if (steps.empty() || arena <= 0)
    return;
  double stepWidth = (kWidth - kLeft) / static_cast<double>(steps.size()), byteHeight = (kHeight - kBottom) / arena;
  auto x = [&](int64_t step) { return kLeft + static_cast<double>(step) * stepWidth; };
  auto y = [&](double bytes) { return kHeight - kBottom - bytes * byteHeight; };
  out << llvm::formatv("<svg viewBox=\"0 0 {0} {1}\" role=\"img\">\n", kWidth, kHeight);
  for (const llvm::json::Value &value : *facts.getArray("buffers")) {
    const llvm::json::Object &buffer = *value.getAsObject();
    int64_t first = *buffer.getInteger("first"), last = *buffer.getInteger("last"), bytes = *buffer.getInteger("bytes");
    double top = static_cast<double>(*buffer.getInteger("offset") + bytes);
    std::string name = escapeHtml(*buffer.getString("name"));
    out << llvm::formatv("<rect x=\"{0:f2}\" y=\"{1:f2}\" width=\"{2:f2}\" height=\"{3:f2}\" "
                         "fill=\"hsl({4} 55% 62%)\"><title>{5}: {6}, {7}, steps {8} to {9}</title></rect>\n",
                         x(first), y(top), x(std::min<int64_t>(last + 1, steps.size())) - x(first),
                         std::max(static_cast<double>(bytes) * byteHeight, 0.2), hueOf(name), name,
                         escapeHtml(*buffer.getString("type")), checkpoint::formatBytes(bytes), first, last);
  }
  // What is live, without what lies between.
  out << "<polyline class=\"live\" points=\"";
  for (size_t i = 0; i < steps.size(); ++i) {
    double live = y(static_cast<double>(*steps[i].getAsObject()->getInteger("live")));
    out << llvm::formatv("{0:f2},{2:f2} {1:f2},{2:f2} ", x(static_cast<int64_t>(i)), x(static_cast<int64_t>(i) + 1),
                         live);
  }
  out << "\"/>\n";
  for (int part = 0; part <= 4; ++part) {
    double bytes = arena * part / 4;
    out << llvm::formatv("<line class=\"grid\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:f1}\" y2=\"{2:f1}\"/>"
                         "<text x=\"{3}\" y=\"{4:f1}\" text-anchor=\"end\">{5}</text>\n",
                         kLeft, kWidth, y(bytes), kLeft - 6, y(bytes) + 4,
                         checkpoint::formatBytes(static_cast<int64_t>(bytes)));
  }
  if (const llvm::json::Object *fullest = facts.getObject("fullest")) {
    int64_t step = *fullest->getInteger("step");
    double at = x(step) + stepWidth / 2;
    out << llvm::formatv("<line class=\"peak\" x1=\"{0:f2}\" x2=\"{0:f2}\" y1=\"0\" y2=\"{1}\"/>"
                         "<text x=\"{2:f2}\" y=\"{3}\" text-anchor=\"middle\">step {4}: {5}</text>\n",
                         at, kHeight - kBottom, std::clamp(at, kLeft + 150, kWidth - 150), kHeight - 8, step,
                         escapeHtml(*steps[static_cast<size_t>(step)].getAsObject()->getString("name")));
  }
  out << "</svg>\n";
}

void listHolders(const llvm::json::Object &facts, llvm::raw_ostream &out) {
  const llvm::json::Object *fullest = facts.getObject("fullest");
  if (!fullest)
    return;
  const llvm::json::Array &holders = *fullest->getArray("holders");
  out << "<table><tr><th>Held at the fullest step</th><th>kind</th><th>memory</th><th>from</th><th>to</th></tr>\n";
  for (size_t i = 0; i < std::min(kListed, holders.size()); ++i) {
    const llvm::json::Object &holder = *holders[i].getAsObject();
    out << llvm::formatv("<tr><td>{0}</td><td>{1}</td><td>{2}</td><td>{3}</td><td>{4}</td></tr>\n",
                         escapeHtml(*holder.getString("name")), *holder.getString("kind"),
                         checkpoint::formatBytes(*holder.getInteger("bytes")), *holder.getInteger("first"),
                         *holder.getInteger("last"));
  }
  out << "</table>\n";
}

void listOffloaded(const llvm::json::Object &facts, llvm::raw_ostream &out) {
  const llvm::json::Array *offloaded = facts.getArray("offloaded");
  if (!offloaded || offloaded->empty())
    return;
  out << "<table><tr><th>In the host's memory</th><th>memory</th><th>from</th><th>to</th></tr>\n";
  for (const llvm::json::Value &entry : *offloaded) {
    const llvm::json::Object &value = *entry.getAsObject();
    out << llvm::formatv("<tr><td>{0}</td><td>{1}</td><td>{2}</td><td>{3}</td></tr>\n",
                         escapeHtml(*value.getString("name")), checkpoint::formatBytes(*value.getInteger("bytes")),
                         *value.getInteger("first"), *value.getInteger("last"));
  }
  out << "</table>\n";
}

void drawAll(const llvm::json::Object &facts, llvm::raw_ostream &out) {
  drawArena(facts, out);
  listHolders(facts, out);
  listOffloaded(facts, out);
  for (const llvm::json::Value &value : *facts.getArray("bodies")) {
    const llvm::json::Object &body = *value.getAsObject();
    out << "<h2>Body of " << escapeHtml(*body.getString("of")) << "</h2>\n";
    drawAll(body, out);
  }
}

} // namespace

std::string memoryPage(const llvm::json::Object &facts, llvm::StringRef title) {
  std::string page;
  llvm::raw_string_ostream out(page);
  out << "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>" << escapeHtml(title)
      << "</title>\n<style>body{font:14px system-ui,sans-serif;margin:2em;max-width:1160px}svg{width:100%;"
         "background:#fafafa}text{font-size:11px}.live{fill:none;stroke:#222;stroke-width:1}.grid{stroke:#0002}"
         ".peak{stroke:#c00}rect:hover{stroke:#000}td,th{padding:2px 12px 2px 0;text-align:left}</style></head><body>\n"
      << "<h1>Memory of " << escapeHtml(title) << "</h1>\n<table>";
  for (auto [key, label] :
       {std::pair("parameters", "Parameters"), std::pair("state", "Other state"), std::pair("inputs", "Inputs"),
        std::pair("constants", "Constants"), std::pair("arena", "Arena")})
    out << "<tr><td>" << label << "</td><td>" << checkpoint::formatBytes(*facts.getInteger(key)) << "</td></tr>";
  if (auto host = facts.getInteger("host"))
    out << "<tr><td>On the host</td><td>" << checkpoint::formatBytes(*host) << "</td></tr>";
  out << "</table>\n<p>Each rectangle is a buffer: the steps that it lives in, and where it lies in the arena. The "
         "line is "
         "what is live; the red line is the fullest step.</p>\n";
  drawAll(facts, out);
  out << "</body></html>\n";
  return page;
}

} // namespace recast::inspect
