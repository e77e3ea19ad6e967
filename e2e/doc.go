// Package e2e holds the tests of the whole: the lifecycle service over HTTP, as its clients see it, on a real Docker Engine with the
// real execd in every sandbox. Whatever a test asks, the answer is held to the contract.
//
// The engine and the images must be there (make images). Every test has a service with an instance name of its own, and fails when
// it leaves a container behind. Some need more of the machine: they run as root, mount a small disk, and start engines of their
// own (dockerd and ip in the PATH).
package e2e
