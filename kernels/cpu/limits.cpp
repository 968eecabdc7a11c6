// What the machine can do at best: bytes read from memory and 8-bit products, per second, with N threads.
// One library for every processor of an architecture: loops for newer instructions are chosen when it runs.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>
#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#define WITH(features) __attribute__((target(features)))
#else
#define WITH(features)
#endif
#if defined(_WIN32)
#include <malloc.h>
#define EXPORTED __declspec(dllexport)
#else
#define EXPORTED __attribute__((visibility("default")))
#endif

namespace {

// Far beyond any cache that this machine could have.
constexpr size_t kBufferBytes = size_t{512} << 20;
constexpr int kPasses = 6;
constexpr int64_t kProductSteps = 5'000'000;

typedef uint64_t Lanes __attribute__((vector_size(64)));

double seconds_of(int num_threads, const std::function<void(int)>& work) {
    std::atomic<int> ready{0};
    std::vector<std::thread> threads;
    std::atomic<bool> go{false};
    for (int i = 0; i < num_threads; ++i) {
        threads.emplace_back([&, i] {
            ++ready;
            while (!go) {
            }
            work(i);
        });
    }
    while (ready < num_threads) {
    }
    const auto start = std::chrono::steady_clock::now();
    go = true;
    for (auto& thread : threads) thread.join();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// One body, compiled for each width of registers that it may use.
__attribute__((always_inline)) inline uint64_t sum_body(const Lanes* data, size_t count) {
    Lanes sums[8] = {};
    for (size_t i = 0; i + 8 <= count; i += 8) {
        for (int lane = 0; lane < 8; ++lane) sums[lane] ^= data[i + lane];
    }
    for (int lane = 1; lane < 8; ++lane) sums[0] ^= sums[lane];
    return sums[0][0];
}

uint64_t sum_plain(const Lanes* data, size_t count) { return sum_body(data, count); }
#if defined(__x86_64__)
WITH("avx2") uint64_t sum_avx2(const Lanes* data, size_t count) { return sum_body(data, count); }
WITH("avx512f") uint64_t sum_avx512(const Lanes* data, size_t count) { return sum_body(data, count); }
#endif

using Sum = uint64_t (*)(const Lanes*, size_t);

Sum choose_sum() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return sum_avx512;
    if (__builtin_cpu_supports("avx2")) return sum_avx2;
#endif
    return sum_plain;
}

char* allocate() {
#if defined(_WIN32)
    return static_cast<char*>(_aligned_malloc(kBufferBytes, size_t{2} << 20));
#else
    return static_cast<char*>(std::aligned_alloc(size_t{2} << 20, kBufferBytes));
#endif
}

void release(char* data) {
#if defined(_WIN32)
    _aligned_free(data);
#else
    std::free(data);
#endif
}

double read_gb_s(int num_threads) {
    const size_t each = kBufferBytes / num_threads / 4096 * 4096;
    char* data = allocate();
    if (data == nullptr) return 0;
#if defined(__linux__)
    madvise(data, kBufferBytes, MADV_HUGEPAGE);
#endif
    for (size_t i = 0; i < kBufferBytes; i += 64) data[i] = static_cast<char>(i >> 6);
    const Sum sum = choose_sum();
    std::vector<uint64_t> sinks(num_threads);
    double best = 0;
    for (int pass = 0; pass < kPasses; ++pass) {
        const double seconds = seconds_of(num_threads, [&](int i) {
            sinks[i] ^= sum(reinterpret_cast<const Lanes*>(data + i * each), each / sizeof(Lanes));
        });
        const double rate = static_cast<double>(each) * num_threads / seconds / 1e9;
        if (rate > best) best = rate;
    }
    volatile uint64_t sink = sinks[0];
    (void)sink;
    release(data);
    return best;
}

// A loop of products of bytes: how many operations a step does, and the loop.
struct Products {
    double operations_per_step;
    int (*run)(int seed);
};

#if defined(__x86_64__)
WITH("avx512f,avx512bw,avx512vnni") int products_vnni(int seed) {
    // Enough chains to hide the latency; the empty asm keeps the compiler from folding them.
    __m512i sums[16];
    for (auto& sum : sums) sum = _mm512_set1_epi32(seed);
    __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(2);
    for (int64_t step = 0; step < kProductSteps; ++step) {
        asm volatile("" : "+v"(a), "+v"(b));
#pragma GCC unroll 16
        for (int k = 0; k < 16; ++k) sums[k] = _mm512_dpbusd_epi32(sums[k], a, b);
    }
    __m512i all = sums[0];
    for (int k = 1; k < 16; ++k) all = _mm512_add_epi32(all, sums[k]);
    return _mm512_reduce_add_epi32(all);
}

WITH("avx2") int products_avx2(int seed) {
    // Without VNNI a product of bytes is three instructions: to 16 bits, to 32 bits, into the sum.
    __m256i sums[8];
    for (auto& sum : sums) sum = _mm256_set1_epi32(seed);
    __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(2);
    const __m256i ones = _mm256_set1_epi16(1);
    for (int64_t step = 0; step < kProductSteps; ++step) {
#pragma GCC unroll 8
        for (int k = 0; k < 8; ++k) {
            asm volatile("" : "+x"(a), "+x"(b));
            const __m256i pairs = _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones);
            sums[k] = _mm256_add_epi32(sums[k], pairs);
        }
    }
    __m256i all = sums[0];
    for (int k = 1; k < 8; ++k) all = _mm256_add_epi32(all, sums[k]);
    return _mm256_extract_epi32(all, 0);
}
#endif

Products choose_products() {
#if defined(__x86_64__)
    // A multiplication and an addition for each byte of a register, in each chain.
    if (__builtin_cpu_supports("avx512vnni")) return {2.0 * 64 * 16, products_vnni};
    if (__builtin_cpu_supports("avx2")) return {2.0 * 32 * 8, products_avx2};
#endif
    return {0, nullptr};
}

// The best pass: another program takes from some, none adds to any.
double int8_gop_s(int num_threads) {
    const Products products = choose_products();
    if (products.run == nullptr) return -1;
    double best = 0;
    for (int pass = 0; pass < kPasses; ++pass) {
        std::vector<int> sinks(num_threads);
        const double seconds = seconds_of(num_threads, [&](int i) { sinks[i] = products.run(i); });
        volatile int sink = sinks[0];
        (void)sink;
        const double rate = products.operations_per_step * kProductSteps * num_threads / seconds / 1e9;
        if (rate > best) best = rate;
    }
    return best;
}

}  // namespace

// Fills in GB/s and GOP/s: 0 where there is no memory to measure with, -1 where there are no instructions.
extern "C" EXPORTED void appliance_limits(int num_threads, double* read, double* products) {
    *read = read_gb_s(num_threads);
    *products = int8_gop_s(num_threads);
}
