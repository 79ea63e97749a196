#include "passes/checkpoint/remat/bound/LowerBound.h"
#include <sstream>

namespace recast::remat {

namespace {

class Printer {
public:
  Printer(const Certificate &certificate, std::ostream &out) : certificate(certificate), out(out) {}

  void header() {
    out << "recast-bound 2\nbudget " << certificate.budgetBytes << "\nclaim ";
    if (certificate.isUnreachable)
      out << "unreachable";
    else
      out << certificate.extraCost;
    out << "\nscale " << certificate.scaleBits << "\nevents " << certificate.events.size();
    for (auto &event : certificate.events) {
      out << "  " << event.node << ' ' << event.last.size();
      for (int v : event.last)
        out << ' ' << v;
    }
    out << "\nspans " << certificate.spans.size();
    for (auto &span : certificate.spans)
      out << ' ' << span.from << ' ' << span.to;
    out << '\n';
    out << "cuts " << certificate.cuts.size() << '\n';
    for (auto &cut : certificate.cuts) {
      out << cut.event << ' ' << cut.limit << ' ' << cut.terms.size();
      for (auto &[column, factor] : cut.terms) {
        out << ' ';
        print(column);
        out << ' ' << factor;
      }
      out << '\n';
    }
  }

  /// The case and those below it, the branch's 0 first.
  void cases(int index) {
    auto &proofCase = certificate.cases[index];
    for (auto &proof : proofCase.proofs) {
      out << "proof " << proof.size() << '\n';
      for (auto &multiplier : proof)
        if (multiplier.cut >= 0)
          out << "K " << multiplier.cut << " 0 0 " << multiplier.value << '\n';
        else
          out << static_cast<char>(multiplier.kind) << ' ' << multiplier.index << ' ' << multiplier.other << ' '
              << multiplier.span << ' ' << multiplier.value << '\n';
    }
    if (!proofCase.branch) {
      out << "end\n";
      return;
    }
    out << "branch ";
    print(*proofCase.branch);
    out << '\n';
    cases(proofCase.child);
    cases(proofCase.child + 1);
  }

private:
  void print(const Column &column) { out << column.kind << ' ' << column.index << ' ' << column.span; }

  const Certificate &certificate;
  std::ostream &out;
};

} // namespace

std::string print(const Certificate &certificate) {
  std::ostringstream out;
  Printer printer(certificate, out);
  printer.header();
  if (certificate.cases.empty())
    out << "proof 0\nend\n"; // Costs are not negative: that proves a claim of zero.
  else
    printer.cases(0);
  return out.str();
}

} // namespace recast::remat
