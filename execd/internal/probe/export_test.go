package probe

// Inspect is inspect, for the tests of package probe_test.
var Inspect = inspect
