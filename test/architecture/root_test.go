// Package architecture_test holds the tests of the repository as a whole: what packages import, who
// makes HTTP clients, whether documented defaults are the code's and links lead somewhere.
package architecture_test

import "testing"

// atRoot makes the root of the repository the working directory of a test, so that paths are those
// that people read.
func atRoot(t *testing.T) {
	t.Helper()
	t.Chdir("../..")
}
