// Checks a certificate of passes/checkpoint/remat/bound against a problem, in exact integers and with nothing of the
// code that made it. It builds the rows that every schedule keeps (passes/checkpoint/remat/bound/README.md says why
// each holds), and follows the proof's cases: propagation through rows, then for each proof weak duality and the
// columns that it fixes.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using Wide = __int128;
struct Node {
  int64_t cost = 0, workspace = 0;
  bool canRepeat = true;
  std::vector<int> reads, writes, overwrites;
};
struct Problem {
  std::vector<Node> nodes;
  std::vector<int64_t> bytes;
  std::vector<char> isKept;
  std::vector<int> writers;
  std::vector<std::vector<int>> readers; // By tensor, ascending.
};
struct Row {
  Wide rhs = 0;
  std::vector<std::pair<int, Wide>> terms; // Of columns; the sum is at least rhs.
};
using Box = std::vector<char>; // By column: 0, 1, or 2 for either.
constexpr int kZero = -1, kOne = -2;
// Within these no sum below overflows: multipliers times bytes stay under 2^125.
constexpr int64_t kMostBytes = int64_t(1) << 50, kMostCost = int64_t(1) << 50;
constexpr Wide kMostMultipliers = static_cast<Wide>(1) << 74; // Of one proof together.

bool has(const std::vector<int> &list, int item) { return std::ranges::find(list, item) != list.end(); }

void require(bool holds, const std::string &what) {
  if (!holds)
    throw std::runtime_error(what);
}

template <typename T> T next(std::istream &in) {
  T item{};
  require(static_cast<bool>(in >> item), "the file ends early, or has a word where a number belongs");
  return item;
}

std::vector<int> nextList(std::istream &in, int limit) {
  std::vector<int> list(next<uint16_t>(in));
  for (int &item : list)
    require((item = next<int>(in)) >= 0 && item < limit, "an index is out of range");
  std::ranges::sort(list);
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return list;
}

Problem readProblem(std::istream &in) {
  require(next<std::string>(in) == "recast-remat", "the problem does not begin with 'recast-remat'");
  Problem p;
  p.nodes.resize(next<int>(in));
  p.bytes.resize(next<int>(in));
  p.isKept.resize(p.bytes.size());
  p.writers.assign(p.bytes.size(), -1);
  p.readers.resize(p.bytes.size());
  int tensors = static_cast<int>(p.bytes.size());
  int64_t bytes = 0, cost = 0;
  auto addUp = [](int64_t &sum, int64_t item, int64_t most) {
    require(item >= 0 && item <= most && (sum += item) <= most, "a number is negative, or too large for exact sums");
  };
  for (int t = 0; t < tensors; ++t) {
    addUp(bytes, p.bytes[t] = next<int64_t>(in), kMostBytes);
    p.isKept[t] = next<int>(in) != 0;
  }
  for (size_t v = 0; v < p.nodes.size(); ++v) {
    Node &node = p.nodes[v];
    node.cost = next<int64_t>(in);
    node.workspace = next<int64_t>(in);
    node.canRepeat = next<int>(in) != 0;
    node.reads = nextList(in, tensors);
    node.writes = nextList(in, tensors);
    node.overwrites = nextList(in, tensors);
    addUp(cost, node.cost, kMostCost);
    addUp(bytes, node.workspace, kMostBytes);
    for (int t : node.reads) {
      require(p.writers[t] >= 0, "a tensor is read before it is written");
      p.readers[t].push_back(static_cast<int>(v));
    }
    for (int t : node.writes)
      require(std::exchange(p.writers[t], static_cast<int>(v)) < 0, "a tensor has two writers");
  }
  return p;
}

class Checker {
public:
  Checker(const Problem &p, std::istream &in) : p(p), in(in) {
    auto word = [&](const char *expected) {
      require(next<std::string>(in) == expected, std::string("no ") + expected);
    };
    word("recast-bound");
    require(next<int>(in) == 2, "another version of the format");
    word("budget"), budget = next<int64_t>(in);
    word("claim"), claim = next<std::string>(in);
    word("scale"), scale = next<int>(in);
    require(budget >= 0 && budget <= kMostBytes && scale >= 0 && scale <= 50, "budget or scale are out of range");
    word("events"), readEvents();
    for (int g = 0; g < gaps(); ++g)
      spans.push_back({g - 1, g});
    word("spans");
    for (int count = next<int>(in); count > 0; --count) {
      int from = next<int>(in), to = next<int>(in);
      require(from >= 0 && from < to && to < gaps(), "a span is out of range");
      spans.push_back({from, to});
    }
    size = std::max(nodes(), tensors());
    // More than this proves the claim: costs are integers.
    threshold = claim == "unreachable" ? 0 : (static_cast<Wide>(std::stoll(claim)) - 1) << scale;
    for (int i = 0; i < static_cast<int>(spans.size()); ++i) {
      for (int t = 0; t < tensors(); ++t) {
        addRow('H', t, 0, i);
        addRow('N', t, 0, i);
      }
      for (int v = 0; v < nodes(); ++v) {
        addRow('S', v, 0, i);
        for (int t : p.nodes[v].reads)
          addRow('I', v, t, i);
      }
      addRow('M', 0, 0, i);
    }
    for (int g = 0; g < gaps(); ++g)
      if (!last[g].empty())
        addVirtualRows(g);
    Box box(kinds.size() * spans.size() * size, 2);
    bool isOpen = propagate(box);
    word("cuts");
    for (int count = next<int>(in), i = 0; i < count; ++i)
      rows[{'K', i, 0, 0}] = nextCut(box);
    checkCase(box, isOpen);
  }

  std::string claim;
  int64_t budget = 0;

private:
  int nodes() const { return static_cast<int>(p.nodes.size()); }
  int tensors() const { return static_cast<int>(p.bytes.size()); }
  int gaps() const { return static_cast<int>(events.size()); }
  int column(char kind, int index, int span) const {
    return (span * static_cast<int>(kinds.size()) + static_cast<int>(kinds.find(kind))) * size + index;
  }

  void readEvents() {
    for (int count = next<uint16_t>(in); count > 0; --count) {
      events.push_back(next<int>(in));
      last.push_back(nextList(in, nodes()));
      require(events.back() >= 0 && events.back() <= nodes(), "an event is out of range");
    }
    require(!events.empty() && last.front().empty() && last.back().empty(), "a virtual event is the first or the last");
    for (int g = 1; g < gaps(); ++g) {
      // Virtual events lie between the first runs of their node and of the next one.
      int step = last[g].empty() ? 1 : 0;
      require(step == 0 || last[g - 1].empty() ? events[g] >= events[g - 1] + step : events[g] == events[g - 1] + step,
              "events do not ascend, or another first run lies beside a virtual event");
      require(step == 1 || events[g] == events[g - 1], "a virtual event does not follow its node's first run");
      for (int v : last[g])
        require(v <= events[g] && p.nodes[v].canRepeat, "a virtual event of a node that cannot repeat there");
    }
  }

  /// v runs again in the span.
  int again(int v, int span) const {
    int from = spans[span].first;
    if (from < 0 || v > events[from] || !p.nodes[v].canRepeat || (span < gaps() && has(last[from], v)))
      return kZero; // After a virtual event its nodes do not run up to the next event.
    return column('r', v, span);
  }
  /// t is held after event g.
  int held(int t, int g) const {
    if (p.writers[t] > events[g])
      return kZero;
    if (events[g] < nodes() && last[g].empty()) {
      auto &node = p.nodes[events[g]];
      if (has(node.writes, t) || (has(node.reads, t) && !has(node.overwrites, t)))
        return kOne;
    }
    return column('h', t, g);
  }
  static void add(Row &row, int column, Wide factor) {
    if (column == kOne)
      row.rhs -= factor;
    else if (column != kZero)
      row.terms.push_back({column, factor});
  }

  Wide used(int v) const {
    Wide sum = p.nodes[v].workspace;
    for (int t : p.nodes[v].writes)
      sum += p.bytes[t];
    for (int t : p.nodes[v].reads)
      sum += has(p.nodes[v].overwrites, t) ? 0 : p.bytes[t];
    return sum;
  }

  /// Adds the row of that name; a name that means nothing here has none.
  void addRow(char kind, int index, int other, int span) {
    auto [from, to] = spans[span];
    int event = events[to], before = from < 0 ? -1 : events[from];
    bool isGap = span < gaps();
    Row row;
    // What was held before the span, or is written again in it.
    auto addSupply = [&](int t) {
      add(row, held(t, from), 1);
      add(row, again(p.writers[t], span), 1);
    };
    if (kind == 'M') {
      if (!isGap || !last[to].empty())
        return;
      row.rhs = (event < nodes() ? used(event) : 0) - budget;
      for (int t = 0; t < tensors(); ++t)
        if (event == nodes() && p.isKept[t])
          row.rhs += p.bytes[t];
        else if (held(t, span) >= 0)
          add(row, held(t, span), -p.bytes[t]);
    } else if (from < 0) {
      return;
    } else if (kind == 'S') { // A node that runs in a span runs in one of its gaps.
      if (isGap || again(index, span) < 0)
        return;
      for (int g = from + 1; g <= to; ++g)
        add(row, again(index, g), 1);
      add(row, again(index, span), -1);
    } else if (kind == 'I') {
      if (again(index, span) < 0)
        return;
      addSupply(other);
      add(row, again(index, span), -1);
    } else if (p.writers[index] < 0 || p.writers[index] > before) {
      return; // It may be written in the span for the first time.
    } else if (kind == 'H') {
      if (held(index, to) < 0)
        return;
      addSupply(index);
      add(row, held(index, to), -1);
    } else { // 'N': a first run of the span reads it, or it is kept.
      bool isRead = event == nodes() && p.isKept[index];
      auto reader = std::ranges::upper_bound(p.readers[index], before);
      isRead |= reader != p.readers[index].end() && *reader <= event;
      if (!isRead)
        return;
      row.rhs = 1;
      addSupply(index);
    }
    rows[{kind, index, other, span}] = std::move(row);
  }

  /// Rows of the columns y, z and l of virtual event g, and what is live in the run that it is.
  void addVirtualRows(int g) {
    int first = g;
    while (!last[first].empty())
      --first;
    int is = column('y', 0, g);
    Row memory{-budget, {}}, one{0, {{is, 1}}}, some{0, {{is, -1}}};
    for (int v : last[g]) {
      int z = column('z', v, g);
      add(one, z, -1);
      add(some, z, 1);
      add(memory, z, -static_cast<Wide>(p.nodes[v].workspace));
      // The earliest of the virtual events that coincide where v is the last of each of their nodes.
      int gap = g;
      while (has(last[gap - 1], v))
        --gap;
      Row where{0, {{z, -1}}};
      add(where, again(v, gap), 1);
      rows[{'W', v, 0, g}] = where;
    }
    rows[{'O', 0, 0, g}] = one;
    if (!last[g - 1].empty())
      rows[{'D', 0, 0, g}] = {0, {{is, 1}, {column('y', 0, g - 1), -1}}};
    rows[{'Y', 0, 0, g}] = some;
    for (int s = 0; s < static_cast<int>(spans.size()); ++s)
      for (int v = 0; spans[s].first >= first && spans[s].second == g && v < nodes(); ++v)
        if (again(v, s) >= 0)
          rows[{'B', v, 0, s}] = {0, {{is, 1}, {again(v, s), -1}}};
    for (int t = 0; t < tensors(); ++t) {
      int live = column('l', t, g);
      Row after{0, {{live, 1}}}, use = after;
      add(after, held(t, g), -1);
      for (int v : last[g])
        if (auto &node = p.nodes[v]; has(node.writes, t) || (has(node.reads, t) && !has(node.overwrites, t)))
          add(use, column('z', v, g), -1);
      // Without users l would be h.
      bool isUsed = use.terms.size() > 1;
      if (isUsed) {
        rows[{'A', t, 0, g}] = after;
        rows[{'U', t, 0, g}] = use;
      }
      add(memory, isUsed ? live : held(t, g), -p.bytes[t]);
    }
    rows[{'M', 0, 0, g}] = memory;
  }

  int nextColumn() {
    char kind = next<char>(in);
    int index = next<int>(in), span = next<int>(in);
    require(kinds.find(kind) != kinds.npos && index >= 0 && index < size && span >= 0 &&
                span < static_cast<int>(spans.size()),
            "a column is out of range");
    return column(kind, index, span);
  }

  /// A cut must follow from a memory row: no choice of columns that fits it takes the cut's sum over its limit.
  Row nextCut(const Box &box) {
    int event = next<int>(in), limit = next<int>(in);
    auto source = rows.find({'M', 0, 0, event});
    require(source != rows.end() && limit >= 0 && limit < 1 << 20, "a cut of no row");
    std::map<int, int> factors;
    for (int count = next<int>(in); count > 0; --count) {
      int item = nextColumn(), factor = next<int>(in);
      require(factor > 0, "a cut's factor is not positive");
      factors[item] = factor;
    }
    Wide capacity = -source->second.rhs;
    std::vector<Wide> lightest(limit + 2, static_cast<Wide>(1) << 120);
    lightest[0] = 0;
    Row cut{-limit, {}};
    for (auto [item, factor] : source->second.terms) {
      auto found = factors.find(item);
      int gain = found == factors.end() ? 0 : std::min(found->second, limit + 1);
      if (found != factors.end())
        cut.terms.push_back({item, -found->second});
      // A column that is known to be 1 only takes capacity, unless the cut counts it.
      if (gain == 0) {
        capacity += box[item] == 1 ? factor : 0;
        continue;
      }
      for (int value = limit + 1; box[item] != 0 && value > 0; --value)
        lightest[value] = std::min(lightest[value], lightest[std::max(0, value - gain)] - factor);
    }
    require(cut.terms.size() == factors.size(), "a cut counts columns that its row does not have");
    require(lightest[limit + 1] > capacity, "a cut does not follow from its row");
    return cut;
  }

  bool propagate(Box &box) const {
    for (bool isChanged = true; isChanged;) {
      isChanged = false;
      for (auto &[name, row] : rows) {
        Wide most = 0;
        for (auto [item, factor] : row.terms)
          most += box[item] == 1 || (box[item] == 2 && factor > 0) ? factor : 0;
        if (most < row.rhs)
          return false;
        for (auto [item, factor] : row.terms)
          if (box[item] == 2 && most - (factor < 0 ? -factor : factor) < row.rhs) {
            box[item] = factor > 0;
            isChanged = true;
          }
      }
    }
    return true;
  }

  /// Reads a case and the cases below it. Where `isOpen` is unset there is nothing to prove any more.
  void checkCase(Box box, bool isOpen) {
    isOpen = isOpen && propagate(box);
    std::string word = next<std::string>(in);
    for (; word == "proof"; word = next<std::string>(in)) {
      Wide value = 0;
      std::vector<Wide> costs(box.size());
      if (claim != "unreachable")
        for (int g = 1; g < gaps(); ++g)
          for (int v = 0; v < nodes(); ++v)
            costs[column('r', v, g)] = static_cast<Wide>(p.nodes[v].cost) << scale;
      Wide multipliers = 0;
      for (int count = next<int>(in); count > 0; --count) {
        char kind = next<char>(in);
        int index = next<int>(in), other = next<int>(in), span = next<int>(in);
        auto row = rows.find({kind, index, other, span});
        Wide multiplier = next<int64_t>(in);
        require(row != rows.end() && multiplier >= 0, "a proof uses a row that does not exist");
        require((multipliers += multiplier) <= kMostMultipliers, "multipliers are too large for exact sums");
        value += multiplier * row->second.rhs;
        for (auto [item, factor] : row->second.terms)
          costs[item] -= multiplier * factor;
      }
      for (size_t j = 0; j < box.size(); ++j)
        value += box[j] == 1 || (box[j] == 2 && costs[j] < 0) ? costs[j] : 0;
      isOpen = isOpen && value <= threshold;
      for (size_t j = 0; j < box.size(); ++j)
        if (box[j] == 2 && value + (costs[j] < 0 ? -costs[j] : costs[j]) > threshold)
          box[j] = costs[j] < 0;
      isOpen = isOpen && propagate(box);
    }
    if (word == "branch") {
      int item = nextColumn();
      char known = box[item];
      for (char value : {0, 1}) {
        box[item] = value;
        checkCase(box, isOpen && (known == 2 || known == value));
      }
      return;
    }
    require(word == "end", "neither proof, branch nor end");
    require(!isOpen, "a case is not proven");
  }

  const Problem &p;
  std::istream &in;
  int scale = 0, size = 0;
  Wide threshold = 0;
  static constexpr std::string_view kinds = "rhyzl"; // Of columns.
  std::vector<int> events;
  std::vector<std::vector<int>> last;     // By event: of a virtual one, the nodes whose last repeat it is.
  std::vector<std::pair<int, int>> spans; // Of events: the gaps, then longer ones.
  std::map<std::tuple<char, int, int, int>, Row> rows;
};

} // namespace

int main(int argc, char **argv) {
  if (argc != 3) {
    std::cerr << "usage: recast-check-bound PROBLEM CERTIFICATE\n"
                 "Says whether the certificate proves its claim about the problem.\n"
                 "Example: recast-bound rl100.txt 80 --problem rl100.problem --certificate rl100.proof && "
                 "recast-check-bound rl100.problem rl100.proof\n";
    return 2;
  }
  const char *file = argv[1];
  try {
    std::ifstream problemFile(argv[1]), proofFile(argv[2]);
    Problem problem = readProblem(problemFile);
    file = argv[2];
    Checker checker(problem, proofFile);
    std::cout << "proven: " << (checker.claim == "unreachable" ? "no schedule is" : "every schedule's extra cost is ")
              << (checker.claim == "unreachable" ? "" : "at least " + checker.claim) << " within " << checker.budget
              << " bytes\n";
    return 0;
  } catch (const std::exception &error) {
    std::cerr << file << ": not proven: " << error.what() << "\n";
    return 1;
  }
}
