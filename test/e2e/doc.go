// Package e2e holds the tests of the whole: the lifecycle service over HTTP, as its clients see it,
// on a real Docker Engine with the real execd in every sandbox. Every response is compared with the
// contract.
//
// The behaviour that every backend has in common is tested in package conformance, which
// TestConformance runs on Docker. The tests here are about the engine, about what the service
// promises beyond that when it has one, and about what needs no backend twice, such as the audit
// log. Tests of the command line, clients and the console are in package clients, on the service's
// own engine.
//
// The engine and the images must be there (make images). Every test has a service with an instance
// name of its own, and fails when it leaves a container behind. Some need more of the machine: they
// run as root, mount a small disk, and start engines of their own (dockerd and ip in the PATH).
package e2e
