#include <algorithm>
#include <optional>

#include "backward.h"

template <class T> void causal_head(Head<T>& head, T* query_features, T* key_features) {
  const auto& call = head.call;
  constexpr long L = LANES<T>, STEP = L > ROWS ? L : ROWS;
  for (long first = 0; first < call.queries; first += TOKENS) {
    const long n = std::min(TOKENS, call.queries - first);
    head.map_queries(first, n, query_features);
    head.map_keys(first, n, key_features, nullptr);
    std::memcpy(call.norm + (head.b * call.heads + head.h) * call.keys + first, head.norm, n * sizeof(T));
    head.load_values(first, n);
    const T decay = head.move_reference();
    head.read_state(query_features);
    head.scale_rows(head.weighted, head.vp, head.before);
    head.make_pairs(key_features, query_features, head.f, nullptr, head.pairs);
    for (long j = 0; j < TOKENS; j += L) {
      Vec<T> s = at(head.denominator + j) * at(head.before + j);
      for (long t = 0; t < j + L; ++t) s += at(head.pairs + t * TOKENS + j);
      at(head.denominator + j) = s;
    }
    for (long t = 0; t < TOKENS; t += STEP)  // queries t to t + STEP see keys before t + STEP
      product<T, true, ADD>(STEP, head.vp / L, t + STEP, wide<T>(head.pairs + t, TOKENS), head.values, head.vp,
                            head.weighted + t * head.vp, head.vp);
    head.write_out(first, n);
    head.add_keys_to_sums(key_features, decay);
  }
}

template <class T> void bidirectional_head(Head<T>& head, T* features) {
  const auto& call = head.call;
  for (long first = 0; first < call.keys; first += TOKENS) {
    const long n = std::min(TOKENS, call.keys - first);
    head.map_keys(first, n, features, nullptr);
    std::memcpy(call.norm + (head.b * call.heads + head.h) * call.keys + first, head.norm, n * sizeof(T));
    head.load_values(first, n);
    head.add_keys_to_sums(features, head.move_reference());
  }
  for (long first = 0; first < call.queries; first += TOKENS) {
    const long n = std::min(TOKENS, call.queries - first);
    head.map_queries(first, n, features);
    head.read_state(features);
    head.write_out(first, n);
  }
}

template <class T> class Forward {
 public:
  explicit Forward(const Call<T>& call)
      : head_(call), query_features_(head_.fp * TOKENS), key_features_(head_.fp * TOKENS) {}

  void run(long i) {
    const auto& call = head_.call;
    head_.open(i / call.heads, i % call.heads);
    if (call.causal)
      causal_head<T>(head_, query_features_, key_features_);
    else
      bidirectional_head<T>(head_, query_features_);
    head_.close();
  }

 private:
  Head<T> head_;
  Space<T> query_features_, key_features_;
};

// The gradients of one head and of every `slots`-th sequence: those of weights are added up, in one order whatever the
// threads.
template <class T> class Backward {
 public:
  explicit Backward(const Call<T>& call) : call_(call), gradients_(call) {}

  void run(long i) {
    const long slot = i / call_.heads, h = i % call_.heads;
    gradients_.clear_weights();
    for (long b = slot; b < call_.batch; b += call_.slots) {
      gradients_.open(b, h);
      if (call_.causal)
        gradients_.causal();
      else
        gradients_.bidirectional();
      gradients_.close();
    }
    gradients_.write_weights(slot * call_.heads + h);
  }

 private:
  const Call<T>& call_;
  Gradients<T> gradients_;
};

// Run `count` pieces of work, each thread with scratch space of its own. False: there was no memory for that.
template <class Work, class T> bool run(const Call<T>& call, long count) {
  bool complete = true;
#pragma omp parallel num_threads(std::max(1L, std::min<long>(call.threads, count)))
  {
    std::optional<Work> work;
    try {
      work.emplace(call);
    } catch (const std::bad_alloc&) {
#pragma omp atomic write
      complete = false;
    }
#pragma omp for schedule(dynamic, 1)
    for (long i = 0; i < count; ++i)
      if (work) work->run(i);
  }
  return complete;
}

template <class T> int forward(const Call<T>& call) { return run<Forward<T>>(call, call.batch * call.heads); }
template <class T> int backward(const Call<T>& call) { return run<Backward<T>>(call, call.slots * call.heads); }

extern "C" {
int forward_float(const Call<float>* call) { return forward(*call); }
int forward_double(const Call<double>* call) { return forward(*call); }
int backward_float(const Call<float>* call) { return backward(*call); }
int backward_double(const Call<double>* call) { return backward(*call); }
}
