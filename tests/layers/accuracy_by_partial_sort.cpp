// The rule of Caffe's accuracy_layer.cpp, written by hand: pairs (score, class), partially sorted from the highest.
// Each line of standard input holds top_k and then the scores of one row; the answer is the top_k classes in order.
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string word;
    int top_k = 0;
    words >> top_k;
    std::vector<std::pair<float, int> > pairs;
    while (words >> word) {
      pairs.push_back(std::make_pair(std::strtof(word.c_str(), NULL), static_cast<int>(pairs.size())));
    }
    std::partial_sort(pairs.begin(), pairs.begin() + top_k, pairs.end(), std::greater<std::pair<float, int> >());
    for (int k = 0; k < top_k; ++k) std::cout << pairs[k].second << ' ';
    std::cout << '\n';
  }
}
