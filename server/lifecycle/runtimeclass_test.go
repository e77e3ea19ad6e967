package lifecycle_test

import (
	"slices"
	"testing"

	"sandbox.internal/server/lifecycle"
)

func TestRuntimeClasses(t *testing.T) {
	classes := lifecycle.RuntimeClasses{{Name: "gvisor", Handler: "runsc"}, {Name: "plain", Handler: "runc", EgressSidecar: true}}
	for name, want := range map[string]lifecycle.RuntimeClass{"": {EgressSidecar: true}, "gvisor": classes[0], "plain": classes[1]} {
		if got, err := classes.Find(name); err != nil || got != want {
			t.Errorf("%q is %+v, %v; want %+v", name, got, err, want)
		}
	}
	if got := classes.Names(); !slices.Equal(got, []string{"gvisor", "plain"}) {
		t.Errorf("the names are %q", got)
	}
	_, err := classes.Find("runsc") // a handler is no name
	wantInvalid(t, "a handler", err, `runtimeClass: "runsc" is not a runtime class; the classes are gvisor, plain`)
	_, err = lifecycle.RuntimeClasses(nil).Find("gvisor")
	wantInvalid(t, "no classes", err, `runtimeClass: "gvisor" is not a runtime class: this service has none`)
}

// TestRuntimeClassWithoutAFirewall: a policy that would not be held is refused, an empty one too.
func TestRuntimeClassWithoutAFirewall(t *testing.T) {
	deny := &lifecycle.NetworkPolicy{DefaultAction: "deny"}
	own := lifecycle.RuntimeClass{Name: "gvisor"}
	wantInvalid(t, "no firewall", own.CheckPolicy(deny), `networkPolicy: cannot be held for the runtime class "gvisor"`)
	wantInvalid(t, "no firewall for an empty one", own.CheckPolicy(&lifecycle.NetworkPolicy{}), `networkPolicy: cannot be held for the runtime class "gvisor"`)
	for name, err := range map[string]error{
		"no policy":  own.CheckPolicy(nil),
		"a firewall": lifecycle.RuntimeClass{Name: "plain", EgressSidecar: true}.CheckPolicy(deny),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
