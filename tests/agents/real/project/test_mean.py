from mean import mean

assert mean([2, 4]) == 3, mean([2, 4])
assert mean([5]) == 5, mean([5])
print("test_mean.py: ok")
