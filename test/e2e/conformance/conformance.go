// Package conformance holds one table of tests about the lives of sandboxes: what a client of the
// lifecycle service may rely on, whatever runs the sandboxes. Each backend runs the same table
// ([Run]) against its own real engine, and says what takes the place of a row that it cannot keep,
// or keeps more strictly.
//
// The tests send HTTP requests to a real service, and every answer is checked against the contract.
// The helpers (services, clients, the inside of a sandbox, streams of events) serve the tests of
// each backend about itself too.
//
// Sandboxes must reach files of the machine that the tests run on (volumes[].host.path), and the
// tests the sandboxes' endpoints.
package conformance

import (
	"fmt"
	"slices"
	"testing"
)

// Backend is what runs the sandboxes of the services under test. Functions may be called from
// several goroutines, and after the test's context has ended.
type Backend struct {
	// Settings returns the sections of a configuration file that choose the backend, [runtime]
	// among them, for a service of that instance name. A service is alone with its sandboxes: what
	// other instances have does not concern it.
	Settings func(t *testing.T, instance string, p Plan) string

	// Images are names that the backend finds without a registry.
	Images Images

	// Leftovers names what the backend still holds for one of an instance's sandboxes, or for all
	// of them if id is empty. The storage of a record that the API still shows is not among it.
	Leftovers func(t *testing.T, instance, id string) []string

	// Leaks names those of an instance's Leftovers that nothing removes any more. It is nil where
	// that is all of them: the service removes them itself, and answers afterwards.
	Leaks func(t *testing.T, instance string) []string

	// Clear removes what Leftovers names for an instance, so that a test that fails leaves nothing
	// to the others.
	Clear func(t *testing.T, instance string)

	// Destroy removes what runs one of an instance's sandboxes, as another user of the backend's
	// own tools does. It is nil where there is no such tool.
	Destroy func(t *testing.T, instance, id string)

	// Log returns the end of what the backend itself logged about an instance, for a test that
	// failed. It is nil where the service's log says it all.
	Log func(instance string) string

	// Claim returns the name of a claim (volumes[].pvc.claimName) for sandboxes of the service,
	// several at a time. It has it removed at the end of the test, once they have ended.
	Claim func(t *testing.T, s *Service) string

	// RuntimeHandler returns what a runtime class can name as its handler, such that its sandboxes
	// run. It removes at the end of the test whatever it made.
	RuntimeHandler func(t *testing.T) string

	// OwnKernel is whether each sandbox has a kernel of its own: it shows no limits inside, and
	// ends as a whole when its memory is used up.
	OwnKernel bool

	// Snapshots is whether the backend keeps the files of sandboxes. Compares is whether it
	// compares snapshots, and Suspends whether it pauses sandboxes with their files alone.
	Snapshots, Compares, Suspends bool

	// RemoveSnapshots removes those of an instance whose service is stopped. It is nil where they
	// are in a directory of the test.
	RemoveSnapshots func(t *testing.T, instance string)

	// Sleeps is whether sandboxes of the backend fall asleep when they are idle.
	Sleeps bool
	// PausedAnswers is whether the daemon of a sandbox that is paused answers requests that need no
	// process.
	PausedAnswers bool
	// Hibernates is whether they go to the disk then.
	Hibernates bool

	// InternalErrors provokes answers with status 500 and proves that they show no cause.
	// Afterwards the service works again, and the sandboxes are in the states that they are named
	// after. It may be nil when Unprovoked says so.
	InternalErrors func(t *testing.T, s *Service, running, paused, ended string)

	// Unprovoked are the answers of the contract, as "operation status", that cannot be brought
	// about with this backend, and why.
	Unprovoked map[string]string

	// Instead are the tests that take the place of the table's, by their names.
	Instead map[string]Replacement
}

// Images are those that sandboxes are made of.
type Images struct {
	Busybox string // sandbox/busybox: a shell and small tools
	Base    string // sandbox/base: Debian with bash, coreutils, curl and Python 3
}

// Replacement takes the place of a test of the table.
type Replacement struct {
	Because string // difference of the backend, or its promise beyond the table
	Test    func(*testing.T, Backend)
}

// row is a test of the table.
type row struct {
	name string
	test func(*testing.T, Backend)
}

// first are those tests of the table that wait a minute for a clock. They begin before the others,
// and call t.Parallel when there is nothing left but to wait, so that the others run meanwhile.
var first = []row{{"Expiry", testExpiry}}

var table = []row{
	{"Life", testLife},
	{"EndpointOfAnotherPort", testEndpointOfAnotherPort},
	{"List", testList},
	{"PreferWait", testPreferWait},
	{"Errors", testErrors},
	{"RequestIDs", testRequestIDs},
	{"ServiceWithoutAKeyIsOpen", testServiceWithoutAKeyIsOpen},
	{"Limits", testLimits},
	{"Keys", testKeysOfTheService},
	{"Snapshots", testSnapshots},
	{"Sleep", testSleep},
	{"MetadataPatch", testMetadataPatch},
	{"ExtensionsComeBackByteForByte", testExtensionsComeBackByteForByte},

	{"RuntimeClasses", testRuntimeClasses},

	{"EventsOfALife", testEventsOfALife},
	{"EventsOfAllLives", testEventsOfAllLives},
	{"EventsReset", testEventsReset},
	{"EventsHaveScopes", testEventsHaveScopes},
	{"EventsSurviveKills", testEventsSurviveKills},
	{"SlowReaderDelaysNoOther", testSlowReaderDelaysNoOther},

	{"Logs", testLogs},
	{"Failures", testFailures},
	{"ImageEntrypoint", testImageEntrypoint},
	{"NoRoom", testNoRoom},
	{"FailedRecordIsForgotten", testFailedRecordIsForgotten},
	{"OutOfMemoryCommandLeavesTheSandboxRunning", testOutOfMemoryCommandLeavesTheSandboxRunning},
	{"SharedMemory", testSharedMemory},
	{"ManySmallProcessesLeaveTheDaemonRunning", testManySmallProcessesLeaveTheDaemonRunning},
	{"RemovedByAnotherProgram", testRemovedByAnotherProgram},
	{"KilledEntrypoint", testKilledEntrypoint},
	{"Init", testInit},
	{"StubbornEntrypointIsKilled", testStubbornEntrypointIsKilled},
	{"StreamsEndBeforeTheirSandbox", testStreamsEndBeforeTheirSandbox},
	{"FilesThroughExecd", testFilesThroughExecd},

	{"PortsThroughTheService", testPortsThroughTheService},
	{"WhoReachesPorts", testAccessToPorts},
	{"HostVolumes", testHostVolumes},
	{"SharedVolume", testSharedVolume},

	{"RestartKeepsSandboxes", testRestartKeepsSandboxes},
	{"LossOfTheDirectory", testLossOfTheDirectory},

	{"RowsOfLives", testRowsOfLives},
	{"RowsOfOperations", testRowsOfOperations},
	{"RowsOfCodes", testRowsOfCodes},
	{"RowsOfSandboxes", testRowsOfSandboxes},
	{"RowsOfCreation", testRowsOfCreation},
	{"RowsOfListing", testRowsOfListing},
	{"RowsOfAuthentication", testRowsOfAuthentication},
	{"RowsOfVolumes", testRowsOfVolumes},
	{"RowsOfNetworkPolicies", testRowsOfNetworkPolicies},
}

// Run runs the table against a backend, its tests at the same time as far as -parallel permits. The
// caller calls [RemoveBuilt] at the end of its TestMain.
func Run(t *testing.T, b Backend) {
	if err := b.check(); err != nil {
		t.Fatal(err)
	}
	for _, r := range first {
		t.Run(r.name, func(t *testing.T) { r.run(t, b) })
	}
	for _, r := range table {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			r.run(t, b)
		})
	}
}

func (r row) run(t *testing.T, b Backend) {
	if instead, replaced := b.Instead[r.name]; replaced {
		t.Logf("instead: %s", instead.Because)
		instead.Test(t, b)
		return
	}
	r.test(t, b)
}

// check finds tests in place of ones that the table has not, and such that say nothing.
func (b Backend) check() error {
	known := map[string]bool{}
	for _, r := range slices.Concat(first, table) {
		known[r.name] = true
	}
	for name, instead := range b.Instead {
		if !known[name] || instead.Because == "" || instead.Test == nil {
			return fmt.Errorf("conformance: Instead[%q]: the table has %t, because %q, a test %t", name,
				known[name], instead.Because, instead.Test != nil)
		}
	}
	return nil
}
