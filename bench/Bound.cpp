// Lower bounds on the cost of recomputation, with certificates for recast-check-bound.
#include "passes/checkpoint/remat/bound/LowerBound.h"
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <limits>
#include <numeric>
#include <sstream>
#include <stdexcept>

using namespace recast;

namespace {

const char *kUsage =
    "usage: recast-bound GRAPH PERCENT [--known=EXTRA] [--enough=GAP] [--effort=N] [--seconds=S]\n"
    "                    [--problem=OUT] [--certificate=OUT]\n"
    "Bounds from below what any schedule of the graph costs beyond the plain one, within PERCENT of the plain peak\n"
    "('floor' instead of PERCENT: bounds the least peak). GRAPH is a benchmark's text file, or a problem that\n"
    "--problem wrote. EXTRA is the cost beyond the plain one of a known schedule, in percent of the plain cost;\n"
    "the search ends when the bound is proven to be within GAP percent of it.\n"
    "--effort limits work in the same way on every machine, --seconds by the clock instead.\n"
    "--events gives the events to prove it with instead of a search: first runs of nodes, in order, and after a "
    "node's\n"
    "virtual ones of it and of the nodes of its set, such as '7 7,2,5 8'.\n"
    "Prints the budget in bytes, the bound, the bound in percent of the plain cost, and seconds.\n"
    "Example: recast-bound rl100.txt 80 --known=2.3 --problem=rl100.problem --certificate=rl100.proof\n";

/// A decimal number times 10^digits, exactly. Throws where it has more digits.
int64_t scaled(const std::string &text, int digits) {
  size_t point = text.find('.');
  std::string whole = text.substr(0, point), rest = point == std::string::npos ? "" : text.substr(point + 1);
  if (static_cast<int>(rest.size()) > digits)
    throw std::runtime_error("'" + text + "' has too many digits");
  rest.resize(digits, '0');
  std::string all = whole + rest;
  int64_t number = 0;
  auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), number);
  if (error != std::errc() || end != all.data() + all.size() || number < 0)
    throw std::runtime_error("'" + text + "' is no number of at least zero that fits 64 bits");
  return number;
}

/// A number of at least zero from the command line.
double parsed(const std::string &name, const std::string &text) {
  char *end = nullptr;
  double number = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != 0 || !(number >= 0) || number > 1e18)
    throw std::invalid_argument(name + " is '" + text + "'; give a number of at least zero");
  return number;
}

/// The benchmark's format: 'n m', n lines 'bytes cost', m lines 'u v'. Numbers with decimals are scaled to integers.
remat::Problem readBenchmark(std::istream &in) {
  size_t nodes = 0, edges = 0;
  if (!(in >> nodes >> edges))
    throw std::runtime_error("does not begin with the numbers of nodes and edges; give a graph of the benchmarks");
  std::vector<std::string> bytes(nodes), costs(nodes);
  for (size_t v = 0; v < nodes && in; ++v)
    in >> bytes[v] >> costs[v];
  auto digits = [](const std::vector<std::string> &numbers) {
    size_t most = 0;
    for (auto &number : numbers)
      if (size_t point = number.find('.'); point != std::string::npos)
        most = std::max(most, number.size() - point - 1);
    return static_cast<int>(most);
  };
  remat::Problem problem;
  int byteDigits = digits(bytes), costDigits = digits(costs);
  for (size_t v = 0; v < nodes; ++v) {
    problem.tensors.push_back({.bytes = scaled(bytes[v], byteDigits)});
    auto &node = problem.nodes.emplace_back();
    node.cost = scaled(costs[v], costDigits);
    node.writes = {static_cast<int>(v)};
  }
  for (size_t e = 0; e < edges; ++e) {
    size_t from = nodes, to = nodes;
    in >> from >> to;
    if (!in || from >= to || to >= nodes)
      throw std::runtime_error("edge " + std::to_string(e) + " does not lead from a node to a later one");
    auto &reads = problem.nodes[to].reads;
    if (std::ranges::find(reads, static_cast<int>(from)) == reads.end())
      reads.push_back(static_cast<int>(from));
  }
  return problem;
}

remat::Problem readProblem(std::istream &in) {
  size_t nodes = 0, tensors = 0;
  in >> nodes >> tensors;
  remat::Problem problem;
  for (size_t t = 0; t < tensors && in; ++t)
    in >> problem.tensors.emplace_back().bytes >> problem.tensors.back().isKept;
  auto readList = [&](std::vector<int> &list) {
    size_t size = 0;
    in >> size;
    for (size_t i = 0; i < size && in; ++i)
      in >> list.emplace_back();
  };
  for (size_t v = 0; v < nodes && in; ++v) {
    auto &node = problem.nodes.emplace_back();
    in >> node.cost >> node.workspaceBytes >> node.canRepeat;
    readList(node.reads);
    readList(node.writes);
    readList(node.overwrites);
  }
  if (!in)
    throw std::runtime_error("the file ends early, or has a word where a number belongs");
  return problem;
}

/// 'recast-remat NODES TENSORS', a line 'bytes kept' a tensor, and a line a node: 'cost workspace repeatable', then
/// reads, writes and overwrites, each as a count and its tensors.
void write(std::ostream &out, const remat::Problem &problem) {
  out << "recast-remat " << problem.nodes.size() << ' ' << problem.tensors.size() << '\n';
  for (auto &tensor : problem.tensors)
    out << tensor.bytes << ' ' << tensor.isKept << '\n';
  for (auto &node : problem.nodes) {
    out << node.cost << ' ' << node.workspaceBytes << ' ' << node.canRepeat;
    for (auto *list : {&node.reads, &node.writes, &node.overwrites}) {
      out << ' ' << list->size();
      for (int t : *list)
        out << ' ' << t;
    }
    out << '\n';
  }
}

/// Of --events. Throws where they are not as remat::Event says.
std::vector<remat::Event> readEvents(const std::string &text, const remat::Problem &problem) {
  std::vector<remat::Event> events;
  std::istringstream words(text);
  int nodes = static_cast<int>(problem.nodes.size());
  auto require = [&](bool holds, const std::string &what) {
    if (!holds)
      throw std::invalid_argument("--events is '" + text + "': " + what);
  };
  for (std::string word; words >> word;) {
    std::istringstream numbers(word);
    remat::Event event{-1, {}};
    numbers >> event.node;
    require(numbers && event.node >= 0 && event.node < nodes, "'" + word + "' does not begin with a node");
    for (char comma; numbers >> comma;) {
      int &v = event.last.emplace_back(-1);
      numbers >> v;
      require(comma == ',' && v >= 0 && v <= event.node && problem.nodes[v].canRepeat,
              "'" + word + "' has a node that cannot repeat there");
    }
    std::ranges::sort(event.last);
    event.last.erase(std::unique(event.last.begin(), event.last.end()), event.last.end());
    int before = events.empty() ? -1 : events.back().node;
    bool isAfterVirtual = !events.empty() && events.back().isVirtual();
    require(event.isVirtual() ? event.node == before
                              : event.node > before && (!isAfterVirtual || event.node == before + 1),
            "'" + word + "' does not follow what is before it");
    events.push_back(std::move(event));
  }
  require(!events.empty() && (!events.back().isVirtual() || events.back().node + 1 == nodes),
          "the last one is missing or has no first run after it");
  return events;
}

void writeFile(const std::string &path, const std::string &text) {
  std::ofstream file(path);
  file << text;
  if (!file.flush())
    throw std::runtime_error("cannot be written: " + path);
}

int run(const std::string &graph, const std::string &percent, const std::vector<std::string> &flags) {
  std::ifstream in(graph);
  std::string word;
  if (!(in >> word))
    throw std::runtime_error("cannot be read");
  remat::Problem problem;
  if (word == "recast-remat") {
    problem = readProblem(in);
  } else {
    in.seekg(0);
    problem = readBenchmark(in);
  }
  int64_t plainCost = 0;
  for (auto &node : problem.nodes)
    plainCost += node.cost;
  double percentOfCost = plainCost > 0 ? 100.0 / static_cast<double>(plainCost) : 0;
  remat::BoundOptions options;
  std::string certificate;
  for (auto &flag : flags) {
    std::string name = flag.substr(0, flag.find('=')), value = flag.substr(flag.find('=') + 1);
    if (name == "--known")
      options.knownCost = static_cast<int64_t>(std::llround(parsed(name, value) / percentOfCost));
    else if (name == "--enough")
      options.enough = parsed(name, value) / 100;
    else if (name == "--effort")
      options.effort = static_cast<int64_t>(parsed(name, value));
    else if (name == "--seconds")
      options.seconds = parsed(name, value), options.effort = std::numeric_limits<int64_t>::max();
    else if (name == "--events")
      options.events = readEvents(value, problem);
    else if (name == "--certificate")
      certificate = value;
    else {
      std::ostringstream text;
      write(text, problem);
      writeFile(value, text.str());
    }
  }
  auto start = std::chrono::steady_clock::now();
  auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  remat::Certificate proof;
  if (percent == "floor") {
    remat::Floor floor = remat::lowerBoundOfPeak(problem, options);
    std::cout << floor.peakBytes << " bytes, "
              << static_cast<double>(floor.peakBytes) / static_cast<double>(remat::plainPeakBytes(problem)) << " of "
              << "the plain peak, " << seconds() << " s\n";
    proof = std::move(floor.certificate);
  } else {
    auto budget =
        static_cast<int64_t>(static_cast<double>(remat::plainPeakBytes(problem)) * parsed("PERCENT", percent) / 100);
    remat::Bound bound = remat::lowerBound(problem, budget, options);
    std::cout << budget << ' ';
    if (bound.isUnreachable)
      std::cout << "unreachable inf ";
    else
      std::cout << bound.extraCost << ' ' << static_cast<double>(bound.extraCost) * percentOfCost << ' ';
    std::cout << seconds() << '\n';
    proof = std::move(bound.certificate);
  }
  if (!certificate.empty())
    writeFile(certificate, remat::print(proof));
  return 0;
}

} // namespace

int main(int argc, char **argv) {
  std::vector<std::string> positional, flags;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    bool isKnown =
        std::ranges::any_of(std::initializer_list<const char *>{"--known=", "--enough=", "--effort=", "--seconds=",
                                                                "--events=", "--problem=", "--certificate="},
                            [&](const char *flag) { return word.starts_with(flag); });
    if (word.starts_with("--") && !isKnown) {
      std::cerr << kUsage;
      return 2;
    }
    (isKnown ? flags : positional).push_back(word);
  }
  if (positional.size() != 2) {
    std::cerr << kUsage;
    return 2;
  }
  try {
    return run(positional[0], positional[1], flags);
  } catch (const std::invalid_argument &error) {
    std::cerr << "recast-bound: " << error.what() << "\n";
    return 2;
  } catch (const std::exception &error) {
    std::cerr << positional[0] << ": " << error.what() << "\n";
    return 1;
  }
}
