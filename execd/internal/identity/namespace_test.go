package identity

import "testing"

func TestMapOfANamespace(t *testing.T) {
	mapped := list(t, "         0     100000      65536\n     70000       1000          1\n")
	for id, want := range map[uint32]bool{0: true, 65535: true, 65536: false, 69999: false, 70000: true, 70001: false, 1<<32 - 2: false} {
		if inMap(mapped, id) != want {
			t.Errorf("%d: %v, want %v", id, !want, want)
		}
	}
	for name, path := range map[string]string{"whole": list(t, "0 0 4294967295\n"), "empty": list(t, ""), "no numbers": list(t, "a b c\n"), "missing": "/no/such/map"} {
		if !inMap(path, 1<<32-2) {
			t.Errorf("%s: a user that may be there is refused", name)
		}
	}
}
