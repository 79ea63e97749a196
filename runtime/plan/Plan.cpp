#include "runtime/plan/Plan.h"
#include <algorithm>

namespace recast {

size_t Plan::bytesAt(Place place) const {
  size_t bytes = 0;
  for (const Buffer &buffer : buffers)
    if (buffer.place == place)
      bytes += buffer.type.bytes();
  return bytes;
}

bool Plan::overlap(int a, int b) const {
  if (a < 0 || b < 0)
    return false;
  a = rootOf(a), b = rootOf(b);
  const Buffer &first = buffers[static_cast<size_t>(a)], &second = buffers[static_cast<size_t>(b)];
  if (first.type.bytes() == 0 || second.type.bytes() == 0)
    return false;
  if (first.place != second.place || (first.place != Place::Arena && first.place != Place::Host))
    return a == b;
  return first.offset < second.offset + second.type.bytes() && second.offset < first.offset + first.type.bytes();
}

std::vector<int> overwritten(const Plan &plan, const Step &step) {
  std::vector<int> all;
  for (int output : step.outputs) {
    if (output < 0)
      continue;
    size_t before = all.size();
    for (int input : step.inputs)
      if (plan.overlap(output, input) && !std::ranges::count(all, input))
        all.push_back(input);
    if (int root = plan.rootOf(output); root != output && all.size() == before)
      all.push_back(root);
  }
  return all;
}

namespace {

constexpr std::string_view placeName(Place place) {
  switch (place) {
  case Place::Absent:
    return "absent";
  case Place::Arena:
    return "arena";
  case Place::Constant:
    return "constant";
  case Place::Input:
    return "input";
  case Place::State:
    return "state";
  case Place::Outer:
    return "outer";
  case Place::View:
    return "in";
  case Place::Host:
    return "host";
  }
  return "?";
}

std::string padded(std::string text, size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

/// "h f32[2,4] @1024" in the arena, "h f32[2,4] host @1024" on the host, "w f32[3,4] state" elsewhere, "v f32[12] in w"
/// for a view, "-" where absent.
std::string describe(const Plan &plan, int index) {
  if (index < 0 || plan.buffers[index].place == Place::Absent)
    return "-";
  const Buffer &buffer = plan.buffers[index];
  std::string where(placeName(buffer.place));
  if (buffer.place == Place::Arena)
    where = "@" + std::to_string(buffer.offset);
  else if (buffer.place == Place::Host)
    where += " @" + std::to_string(buffer.offset);
  else if (buffer.place == Place::View)
    where += " " + plan.buffers[buffer.offset].name;
  return buffer.name + " " + toString(buffer.type) + " " + where;
}

std::string describe(const Plan &plan, const std::vector<int> &indices) {
  std::string text;
  for (int index : indices)
    text += (text.empty() ? "" : ", ") + describe(plan, index);
  return text;
}

std::string operatorName(const StepSpec &spec) {
  return (spec.domain.empty() ? "" : spec.domain + ".") + spec.op + "-" + std::to_string(spec.version);
}

std::string indented(const std::string &text) {
  std::string result = "        ";
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    result += text[i];
    if (text[i] == '\n')
      result += "        ";
  }
  return result + "\n";
}

} // namespace

std::string print(const Plan &plan) {
  std::string text = "plan: " + std::to_string(plan.steps.size()) + " steps" +
                     (plan.device == "cpu" ? "" : " on " + plan.device) + "\n";
  for (Place place : {Place::Input, Place::State, Place::Constant, Place::Arena, Place::Host}) {
    auto count = std::ranges::count(plan.buffers, place, &Buffer::place);
    if (place == Place::Host && !plan.hostBytes)
      continue;
    text += "  " + padded(std::string(placeName(place)), 9) + std::to_string(count) + " buffers, " +
            std::to_string(plan.bytesAt(place)) + " bytes";
    if (place == Place::Arena)
      text += ", sharing " + std::to_string(plan.arenaBytes) + " bytes";
    if (place == Place::Host)
      text += ", sharing " + std::to_string(plan.hostBytes) + " bytes";
    text += "\n";
  }

  size_t opWidth = 0, libraryWidth = 0;
  for (const Step &step : plan.steps) {
    opWidth = std::max(opWidth, operatorName(step.spec).size());
    libraryWidth = std::max(libraryWidth, step.library.size());
  }
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step &step = plan.steps[i];
    text += padded(std::to_string(i), 6) + padded(operatorName(step.spec), opWidth + 2) +
            padded(step.library, libraryWidth + 2) + "'" + step.spec.name + "'\n";
    text += "        (" + describe(plan, step.inputs) + ") -> (" + describe(plan, step.outputs) + ")\n";
    if (step.workspaceBytes)
      text += "        workspace " + std::to_string(step.workspaceBytes) + " bytes @" +
              std::to_string(step.workspaceOffset) + "\n";
    std::string over;
    for (int index : overwritten(plan, step))
      over += (over.empty() ? "        overwrites " : ", ") + plan.buffers[index].name;
    text += over.empty() ? "" : over + "\n";
    for (const std::string &part : step.spec.attrs.getStrings("operators"))
      text += "        does " + part + "\n";
    for (const std::string &refusal : step.refusals)
      text += "        refused by " + refusal + "\n";
    for (const Plan &body : step.bodies)
      text += indented(print(body));
  }

  for (const Output &output : plan.outputs) {
    text += "output " + output.name + " = " + describe(plan, output.buffer);
    if (output.updates >= 0)
      text += ", updates " + plan.buffers[output.updates].name;
    text += "\n";
  }
  return text;
}

} // namespace recast
