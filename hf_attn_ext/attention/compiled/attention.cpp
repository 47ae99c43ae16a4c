#include <algorithm>

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

template <class T> void forward(const Call<T>& call) {
#pragma omp parallel num_threads(call.threads)
  {
    Head<T> head(call);
    Space<T> query_features(head.fp * TOKENS), key_features(head.fp * TOKENS);
#pragma omp for schedule(dynamic, 1)
    for (long i = 0; i < call.batch * call.heads; ++i) {
      head.open(i / call.heads, i % call.heads);
      if (call.causal)
        causal_head<T>(head, query_features, key_features);
      else
        bidirectional_head<T>(head, query_features);
      head.close();
    }
  }
}

template <class T> void backward(const Call<T>& call) {
#pragma omp parallel num_threads(call.threads)
  {
    Gradients<T> gradients(call);
#pragma omp for schedule(dynamic, 1)
    for (long i = 0; i < call.batch * call.heads; ++i) {
      gradients.open(i / call.heads, i % call.heads);
      if (call.causal)
        gradients.causal();
      else
        gradients.bidirectional();
      gradients.close();
    }
  }
}

extern "C" {
void forward_float(const Call<float>* call) { forward(*call); }
void forward_double(const Call<double>* call) { forward(*call); }
void backward_float(const Call<float>* call) { backward(*call); }
void backward_double(const Call<double>* call) { backward(*call); }
}
