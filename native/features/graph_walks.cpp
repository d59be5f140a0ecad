#include "features/graph_walks.hpp"

#include <cmath>

namespace placewise {

namespace {

// A line through points, by least squares.
class Regression {
public:
    void add(double x, double y) {
        ++count_;
        x_ += x;
        y_ += y;
        xx_ += x * x;
        xy_ += x * y;
    }
    double slope() const {
        const double spread = count_ * xx_ - x_ * x_;
        return count_ > 1 && spread > 0 ? (count_ * xy_ - x_ * y_) / spread : 0.0;
    }

private:
    double count_ = 0.0, x_ = 0.0, y_ = 0.0, xx_ = 0.0, xy_ = 0.0;
};

}  // namespace

std::vector<double> fractal_dimensions(const Adjacency& neighbours, Index reach, Interrupt& interrupt) {
    const auto n = static_cast<std::int32_t>(neighbours.size());
    std::vector<double> slope(n);
    std::vector<std::int32_t> seen_from(n, -1), queue(n);
    for (std::int32_t node = 0; node < n && !interrupt.stop(); ++node) {
        Regression line;
        seen_from[node] = node;
        queue[0] = node;
        Index first = 0, last = 1;
        for (int radius = 1; last < reach; ++radius) {
            const Index ring = last;
            for (; first < ring; ++first) {
                for (const std::int32_t other : neighbours[queue[first]]) {
                    if (seen_from[other] == node) continue;
                    seen_from[other] = node;
                    queue[last++] = other;
                }
            }
            if (last == ring) break;
            line.add(std::log(radius), std::log(static_cast<double>(last)));
        }
        slope[node] = line.slope();
    }
    return slope;
}

}  // namespace placewise
