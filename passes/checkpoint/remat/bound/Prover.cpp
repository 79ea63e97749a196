#include "passes/checkpoint/remat/bound/Prover.h"
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <coin/ClpSimplex.hpp>
#include <coin/CoinPackedMatrix.hpp>
#include <map>
#include <numeric>

namespace recast::remat {

namespace {

constexpr double kTolerance = 1e-6; // Of the LP's columns, which lie in [0, 1].
constexpr int kStart = 100;         // Iterations that a start of the simplex takes as long as, about.
constexpr int64_t kLargestMultiplier = int64_t(1) << 58; // Their products with bytes must sum up in 128 bits.

double steadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double fraction(double value) { return std::min(value, 1 - value); }

} // namespace

Work::Work(int64_t units, double seconds) : units(units), endSeconds(seconds > 0 ? steadySeconds() + seconds : 0) {}

bool Work::isDone() const { return used >= units || (endSeconds > 0 && steadySeconds() >= endSeconds); }

double Work::secondsLeft() const { return endSeconds > 0 ? std::max(1e-3, endSeconds - steadySeconds()) : 0; }

Work Work::part(double share) const {
  return Work(static_cast<int64_t>(static_cast<double>(left()) * share), secondsLeft() * share);
}

/// A sum of rows over a box.
struct Prover::Proof {
  std::vector<std::pair<int, int64_t>> multipliers; ///< Row, and how often in units of 2^-scaleBits.
  __int128 value = 0;                               ///< Bounds the cost in the box, in the same units.
  std::vector<__int128> reducedCosts;               ///< By column.
  bool isUsed = false;                              ///< Columns were fixed because of it.
};

struct Prover::Case {
  Box box;
  bool isEmpty = false;      ///< Propagation alone shows that nothing is in the box.
  std::vector<Proof> proofs; ///< Without their reduced costs.
  __int128 value = 0;        ///< The best of this case's and its ancestors' proofs.
  std::vector<double> point, duals;
  std::vector<unsigned char> basis; ///< Clp's status of columns, then of rows; empty: none yet.
  int branchColumn = -1, child = -1;
};

Prover::Prover(const Problem &problem, const Relaxation &relaxation, int64_t target, bool hasCosts)
    : relaxation(relaxation), target(target), hasCosts(hasCosts), lp(std::make_unique<ClpSimplex>()) {
  int64_t total = 1;
  for (auto &node : problem.nodes)
    total += node.cost;
  // Multipliers of rows without bytes are at most about the total cost; they must stay below kLargestMultiplier.
  scaleBits = std::clamp(56 - static_cast<int>(std::bit_width(static_cast<uint64_t>(total))), 0, 50);
  costScale = 100.0 / static_cast<double>(total);
  rowsOfColumn.resize(relaxation.columns().size());
  for (auto &row : relaxation.rows())
    addRow(row, -1);
}

Prover::~Prover() = default;

void Prover::addRow(Row row, int cut) {
  int64_t largest = 1;
  for (auto &term : row.terms) {
    largest = std::max(largest, std::abs(term.factor));
    rowsOfColumn[term.column].push_back(static_cast<int>(rows.size()));
  }
  rowScales.push_back(static_cast<double>(largest));
  rowCuts.push_back(cut);
  rows.push_back(std::move(row));
}

/// Gives the LP the rows that it does not have yet.
void Prover::loadRows() {
  int columns = static_cast<int>(relaxation.columns().size());
  std::vector<CoinBigIndex> starts{0};
  std::vector<int> indices;
  std::vector<double> factors, least, most;
  for (size_t r = loadedRows; r < rows.size(); ++r) {
    for (auto &term : rows[r].terms) {
      indices.push_back(term.column);
      factors.push_back(static_cast<double>(term.factor) / rowScales[r]);
    }
    starts.push_back(static_cast<CoinBigIndex>(indices.size()));
    least.push_back(static_cast<double>(rows[r].rhs) / rowScales[r]);
    most.push_back(COIN_DBL_MAX);
  }
  if (loadedRows == 0) {
    lp->setLogLevel(0);
    lp->scaling(0); // Rows are scaled already, and it takes time.
    std::vector<double> costs, zeros(columns), ones(columns, 1);
    for (auto &column : relaxation.columns())
      costs.push_back(hasCosts ? static_cast<double>(column.cost) * costScale : 0);
    CoinPackedMatrix matrix(false, columns, static_cast<int>(least.size()), static_cast<CoinBigIndex>(indices.size()),
                            factors.data(), indices.data(), starts.data(), nullptr);
    lp->loadProblem(matrix, zeros.data(), ones.data(), costs.data(), least.data(), most.data());
  } else if (!least.empty()) {
    lp->addRows(static_cast<int>(least.size()), least.data(), most.data(), starts.data(), indices.data(),
                factors.data());
  }
  loadedRows = rows.size();
}

/// Fixes columns whose other value breaks a row whatever the rest is. False: the box is empty.
bool Prover::propagate(Box &box, std::vector<int> rowsToVisit) const {
  std::vector<char> isQueued(rows.size());
  for (int r : rowsToVisit)
    isQueued[r] = true;
  while (!rowsToVisit.empty()) {
    int r = rowsToVisit.back();
    rowsToVisit.pop_back();
    isQueued[r] = false;
    int64_t most = 0, spread = 0;
    for (auto &term : rows[r].terms) {
      Fix fix = box[term.column];
      if (fix == Fix::One || (fix == Fix::Free && term.factor > 0))
        most += term.factor;
      if (fix == Fix::Free)
        spread = std::max(spread, std::abs(term.factor));
    }
    if (most < rows[r].rhs)
      return false;
    if (most - spread >= rows[r].rhs)
      continue;
    for (auto &term : rows[r].terms) {
      if (box[term.column] != Fix::Free || most - std::abs(term.factor) >= rows[r].rhs)
        continue;
      box[term.column] = term.factor > 0 ? Fix::One : Fix::Zero;
      for (int other : rowsOfColumn[term.column])
        if (!isQueued[other]) {
          isQueued[other] = true;
          rowsToVisit.push_back(other);
        }
    }
  }
  return true;
}

bool Prover::proves(__int128 value) const {
  // Costs are integers: more than target - 1 is at least the target.
  return value > (hasCosts ? static_cast<__int128>(target - 1) << scaleBits : 0);
}

/// Rounds the multipliers down to integers, which keeps the proof sound, and sums the rows exactly.
Prover::Proof Prover::prove(const std::vector<double> &duals, const Box &box) const {
  Proof proof;
  auto &columns = relaxation.columns();
  proof.reducedCosts.resize(columns.size());
  for (size_t j = 0; hasCosts && j < columns.size(); ++j)
    proof.reducedCosts[j] = static_cast<__int128>(columns[j].cost) << scaleBits;
  for (size_t r = 0; r < duals.size(); ++r) {
    double units = std::ldexp(duals[r] / (rowScales[r] * costScale), scaleBits);
    if (!(units >= 1))
      continue;
    int64_t multiplier =
        units < static_cast<double>(kLargestMultiplier) ? static_cast<int64_t>(units) : kLargestMultiplier;
    proof.multipliers.push_back({static_cast<int>(r), multiplier});
    proof.value += static_cast<__int128>(multiplier) * rows[r].rhs;
    for (auto &term : rows[r].terms)
      proof.reducedCosts[term.column] -= static_cast<__int128>(multiplier) * term.factor;
  }
  for (size_t j = 0; j < columns.size(); ++j)
    if (box[j] == Fix::One || (box[j] == Fix::Free && proof.reducedCosts[j] < 0))
      proof.value += proof.reducedCosts[j];
  return proof;
}

void Prover::setBox(const Box &box) {
  for (size_t j = 0; j < box.size(); ++j)
    lp->setColumnBounds(static_cast<int>(j), box[j] == Fix::One ? 1 : 0, box[j] == Fix::Zero ? 0 : 1);
}

/// Rows that came after the basis are basic in it.
void Prover::setBasis(std::vector<unsigned char> basis) {
  if (basis.empty())
    return;
  basis.resize(relaxation.columns().size() + rows.size(), ClpSimplex::basic);
  lp->copyinStatus(basis.data());
}

/// Fixes what the proof leaves no choice about. True: something that the LP's point does otherwise.
bool Prover::fixByCost(Case &it, Proof &proof) {
  std::vector<int> visit;
  Box before = it.box;
  for (size_t j = 0; j < it.box.size(); ++j) {
    __int128 cost = proof.reducedCosts[j];
    if (it.box[j] != Fix::Free || !proves(proof.value + (cost < 0 ? -cost : cost)))
      continue;
    it.box[j] = cost < 0 ? Fix::One : Fix::Zero;
    visit.insert(visit.end(), rowsOfColumn[j].begin(), rowsOfColumn[j].end());
  }
  if (!visit.empty()) {
    proof.isUsed = true;
    std::ranges::sort(visit);
    visit.erase(std::unique(visit.begin(), visit.end()), visit.end());
    it.isEmpty = !propagate(it.box, std::move(visit));
  }
  if (it.isEmpty)
    return false;
  for (size_t j = 0; j < it.box.size(); ++j)
    if (before[j] != it.box[j] && std::abs(it.point[j] - (it.box[j] == Fix::One ? 1 : 0)) > kTolerance)
      return true;
  return false;
}

/// Solves the LP over the case's box and keeps its proof. True: the box became smaller, so that it pays to do it again.
bool Prover::solveOnce(Case &it, Work &work) {
  loadRows();
  setBox(it.box);
  setBasis(it.basis);
  // In slices, so that wall-clock time is looked at; a dual simplex that stops early proves what it has.
  constexpr int kSlice = 1000;
  do {
    lp->setMaximumIterations(kSlice);
    lp->dual();
    work.spend((lp->numberIterations() + kStart) * static_cast<int64_t>(rows.size()));
  } while (lp->status() == 3 && !work.isDone());
  it.duals.assign(lp->dualRowSolution(), lp->dualRowSolution() + rows.size());
  it.point.assign(lp->primalColumnSolution(), lp->primalColumnSolution() + it.box.size());
  it.basis.assign(lp->statusArray(), lp->statusArray() + it.box.size() + rows.size());
  Proof best = prove(it.duals, it.box);
  if (lp->status() == 1) {
    std::unique_ptr<double[]> ray(lp->infeasibilityRay());
    for (int shift = -10; ray && shift < 60 && !proves(best.value); shift += 5)
      for (double sign : {1.0, -1.0}) {
        std::vector<double> duals(it.duals);
        for (size_t r = 0; r < rows.size(); ++r)
          duals[r] += std::ldexp(sign * ray[r], shift);
        Proof proof = prove(duals, it.box);
        if (proof.value > best.value)
          best = std::move(proof);
      }
  }
  bool isBetter = best.value > it.value;
  bool isSmaller = false;
  if (isBetter) {
    it.value = best.value;
    if (!proves(best.value))
      isSmaller = fixByCost(it, best);
    best.reducedCosts = {};
    if (!it.proofs.empty() && !it.proofs.back().isUsed)
      it.proofs.pop_back();
    it.proofs.push_back(std::move(best));
  }
  return isSmaller && !it.isEmpty;
}

void Prover::solve(Case &it, Work &work) {
  constexpr int kRepeats = 4;
  for (int i = 0; i < kRepeats && solveOnce(it, work) && !work.isDone(); ++i)
    ;
}

void Prover::solveRoot(Work &work) {
  auto root = std::make_unique<Case>();
  root->box.assign(relaxation.columns().size(), Fix::Free);
  std::vector<int> all(rows.size());
  std::iota(all.begin(), all.end(), 0);
  root->isEmpty = !propagate(root->box, std::move(all));
  firstBox = root->box;
  if (!root->isEmpty)
    solve(*root, work);
  cases.clear();
  cases.push_back(std::move(root));
}

void Prover::takeRoot(const std::vector<double> &multipliers) {
  std::vector<double> duals(multipliers);
  for (size_t r = 0; r < duals.size(); ++r)
    duals[r] *= rowScales[r] * costScale;
  auto root = std::make_unique<Case>();
  root->box.assign(relaxation.columns().size(), Fix::Free);
  Proof proof = prove(duals, root->box);
  proof.reducedCosts = {};
  root->value = proof.value;
  root->proofs.push_back(std::move(proof));
  cases.clear();
  cases.push_back(std::move(root));
}

void Prover::addCuts(Work &work, int rounds) { addCutsTo(*cases.front(), work, rounds); }

/// Cuts that the case's point breaks. They hold for all cases.
void Prover::addCutsTo(Case &it, Work &work, int rounds) {
  constexpr double kLeastGain = 2e-3; // Of the value, over kPatience rounds.
  constexpr int kPatience = 4;
  std::vector<__int128> values{it.value};
  for (int i = 0; i < rounds && !it.isEmpty && !proves(it.value) && !work.isDone(); ++i) {
    if (!separate(it.point))
      return;
    solve(it, work);
    values.push_back(it.value);
    if (i >= kPatience && static_cast<double>(values.back()) <
                              static_cast<double>(values[values.size() - 1 - kPatience]) * (1 + kLeastGain))
      return;
  }
}

/// Strong branching: the column whose two cases together lift the bound most. -1: the point is integral.
int Prover::chooseBranch(Case &it, Work &work) {
  constexpr size_t kCandidates = 8;
  constexpr int kIterations = 40;
  std::vector<int> candidates;
  for (size_t j = 0; j < it.box.size(); ++j)
    if (it.box[j] == Fix::Free && fraction(it.point[j]) > 1e-5)
      candidates.push_back(static_cast<int>(j));
  // Whether anything of the largest set repeats, then of the next.
  int first = -1;
  for (int j : candidates)
    if (auto &c = relaxation.columns()[j]; c.kind == 'y' && (first < 0 || c.span > relaxation.columns()[first].span))
      first = j;
  if (first >= 0)
    return first;
  auto weight = [&](int j) {
    auto &column = relaxation.columns()[j];
    return fraction(it.point[j]) * (column.kind == 'h' ? 2 : 1);
  };
  std::ranges::sort(candidates, [&](int a, int b) { return std::pair(-weight(a), a) < std::pair(-weight(b), b); });
  if (candidates.size() > kCandidates)
    candidates.resize(kCandidates);
  if (candidates.size() <= 1)
    return candidates.empty() ? -1 : candidates[0];
  setBox(it.box);
  int best = candidates[0];
  double bestScore = -1;
  for (int j : candidates) {
    double gains[2];
    for (int value : {0, 1}) {
      lp->setColumnBounds(j, value, value);
      setBasis(it.basis);
      lp->setMaximumIterations(kIterations);
      lp->dual();
      work.spend((lp->numberIterations() + kStart) * static_cast<int64_t>(rows.size()));
      double now = lp->status() == 1 ? 1e3 : lp->objectiveValue();
      gains[value] = std::max(now - static_cast<double>(it.value) * std::ldexp(costScale, -scaleBits), 1e-7);
    }
    lp->setColumnBounds(j, 0, 1);
    if (double score = gains[0] * gains[1]; score > bestScore) {
      bestScore = score;
      best = j;
    }
  }
  return best;
}

void Prover::branch(Work &work) {
  if (cases.empty() || cases[0]->isEmpty)
    return;
  constexpr int kCutRounds = 10; // Of cases that differ in what a virtual event is: much else differs with it.
  // Open cases by their bound: the worst first, since it is the bound of all.
  std::multimap<__int128, int> open;
  auto offer = [&](int index) {
    if (!cases[index]->isEmpty && !proves(cases[index]->value))
      open.insert({cases[index]->value, index});
  };
  for (size_t i = 0; i < cases.size(); ++i)
    if (cases[i]->child < 0)
      offer(static_cast<int>(i));
  while (!open.empty() && !work.isDone()) {
    int index = open.begin()->second;
    int column = chooseBranch(*cases[index], work);
    if (column < 0)
      return; // Integral: the bound of all is the cost of this point.
    open.erase(open.begin());
    cases[index]->branchColumn = column;
    cases[index]->child = static_cast<int>(cases.size());
    for (Fix fix : {Fix::Zero, Fix::One}) {
      auto child = std::make_unique<Case>();
      child->box = cases[index]->box;
      child->box[column] = fix;
      child->value = cases[index]->value;
      child->basis = cases[index]->basis;
      child->point = cases[index]->point;
      child->isEmpty = !propagate(child->box, rowsOfColumn[column]);
      if (!child->isEmpty)
        solve(*child, work);
      if (relaxation.columns()[column].kind == 'y')
        addCutsTo(*child, work, kCutRounds);
      cases.push_back(std::move(child));
      offer(static_cast<int>(cases.size()) - 1);
    }
    Case &parent = *cases[index];
    parent.box = {};
    parent.point = parent.duals = {};
    parent.basis = {};
  }
}

double Prover::value() const {
  double least = static_cast<double>(target);
  for (auto &it : cases)
    if (it->child < 0 && !it->isEmpty)
      least = std::min(least, std::ldexp(static_cast<double>(it->value), -scaleBits));
  return least;
}

int64_t Prover::bound() const {
  int64_t least = target;
  for (auto &it : cases)
    if (it->child < 0 && !it->isEmpty && !proves(it->value))
      least =
          std::min(least, static_cast<int64_t>((it->value + (static_cast<__int128>(1) << scaleBits) - 1) >> scaleBits));
  return std::max<int64_t>(least, 0);
}

bool Prover::isClosed() const {
  return std::ranges::all_of(cases, [&](auto &it) { return it->child >= 0 || it->isEmpty || proves(it->value); });
}

std::vector<double> Prover::eventPrices() const {
  std::vector<double> prices(relaxation.gaps());
  for (size_t r = 0; r < cases[0]->duals.size(); ++r)
    if (rows[r].kind == RowKind::Memory)
      prices[rows[r].span] += cases[0]->duals[r];
  return prices;
}

const std::vector<double> &Prover::point() const {
  const Case *least = nullptr;
  for (auto &it : cases)
    if (it->child < 0 && !it->isEmpty && (!least || it->value < least->value))
      least = it.get();
  return least->point;
}

Certificate Prover::certificate(int64_t budgetBytes) const {
  Certificate certificate{.budgetBytes = budgetBytes,
                          .extraCost = bound(),
                          .isUnreachable = !hasCosts,
                          .scaleBits = scaleBits,
                          .events = relaxation.events(),
                          .spans = {relaxation.spans().begin() + relaxation.gaps(), relaxation.spans().end()},
                          .cuts = cuts,
                          .cases = {}};
  for (auto &it : cases) {
    ProofCase proofCase;
    for (auto &proof : it->proofs) {
      auto &out = proofCase.proofs.emplace_back();
      for (auto &[r, value] : proof.multipliers)
        out.push_back({rows[r].kind, rows[r].index, rows[r].other, rows[r].span, rowCuts[r], value});
    }
    if (it->child >= 0) {
      proofCase.branch = relaxation.columns()[it->branchColumn];
      proofCase.child = it->child;
    }
    certificate.cases.push_back(std::move(proofCase));
  }
  return certificate;
}

} // namespace recast::remat
