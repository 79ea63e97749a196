// Places the buffers of MiniMalloc's CSV files: what bench/allocation measures.
#include "runtime/compile/PlacementSearch.h"
#include <charconv>
#include <chrono>
#include <climits>
#include <fstream>
#include <iostream>
#include <string>

using namespace recast;

namespace {

constexpr uint64_t kNodes = 20'000'000; // Decisions; tens of seconds.

bool readNumbers(const std::string &line, uint64_t (&numbers)[4]) {
  const char *at = line.data(), *end = at + line.size();
  for (int i = 0; i < 4; ++i) {
    auto [next, error] = std::from_chars(at, end, numbers[i]);
    bool isLast = i == 3;
    if (error != std::errc() || (isLast ? next != end : next == end || *next != ','))
      return false;
    at = next + !isLast;
  }
  return numbers[1] < numbers[2] && numbers[2] <= INT_MAX;
}

/// "" or what is wrong. `ids` are the file's names of the items.
std::string read(const std::string &path, placement::Problem &problem, std::vector<uint64_t> &ids) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line))
    return path + ": cannot be read; give a CSV file";
  if (line != "id,lower,upper,size")
    return path + ": the first line is '" + line + "', and must be 'id,lower,upper,size'";
  while (std::getline(file, line)) {
    uint64_t numbers[4];
    if (!readNumbers(line, numbers))
      return path + ": '" + line + "' is no buffer; write id,lower,upper,size with lower < upper";
    ids.push_back(numbers[0]);
    problem.items.push_back({numbers[3], static_cast<int>(numbers[1]), static_cast<int>(numbers[2]) - 1});
  }
  return "";
}

} // namespace

int main(int argc, char **argv) {
  size_t capacity = 0;
  std::string_view text = argc == 3 ? argv[2] : "";
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), capacity);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) {
    std::cerr << "usage: recast-allocate FILE.csv CAPACITY\n"
                 "Prints the heuristics' bytes, the search's seconds, decisions and bytes (0: not placed), and then a "
                 "line 'id,offset' for each buffer.\n"
                 "Example: recast-allocate A.csv 1048576\n";
    return 2;
  }
  placement::Problem problem{.items = {}, .alignment = 1};
  std::vector<uint64_t> ids;
  if (std::string message = read(argv[1], problem, ids); !message.empty()) {
    std::cerr << "recast-allocate: error: " << message << "\n";
    return 1;
  }
  placement::Solution simple = placement::heuristics(problem), solution;
  auto start = std::chrono::steady_clock::now();
  uint64_t left = kNodes;
  bool isPlaced = placement::fit(problem, capacity, left, solution) == placement::Fit::Found;
  std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::cout << simple.bytes << ' ' << seconds.count() << ' ' << kNodes - left << ' ' << solution.bytes << '\n';
  for (size_t i = 0; isPlaced && i < ids.size(); ++i)
    std::cout << ids[i] << ',' << solution.offsets[i] << '\n';
  return 0;
}
