package lifecycle

import "strings"

// RuntimeClass is a way to run sandboxes that clients may choose by its name, beside the backend's
// default.
type RuntimeClass struct {
	Name string
	// Handler is the backend's own name for what runs the sandboxes: a runtime of a container
	// engine, a RuntimeClass of a cluster.
	Handler string
	// EgressSidecar is true when the firewall of an egress sidecar holds for sandboxes of the
	// class. It does not where they have a network stack of their own, whose packets the kernel's
	// filter never sees.
	EgressSidecar bool
}

// RuntimeClasses are those of a service. Their names are unique.
type RuntimeClasses []RuntimeClass

// Find returns the class with the name, and for the empty name the backend's default, which has an
// empty Handler. It returns an Error of KindInvalid for a name that no class has.
func (c RuntimeClasses) Find(name string) (RuntimeClass, error) {
	if name == "" {
		return RuntimeClass{EgressSidecar: true}, nil
	}
	for _, class := range c {
		if class.Name == name {
			return class, nil
		}
	}
	if len(c) == 0 {
		return RuntimeClass{}, Invalidf("runtimeClass: %.128q is not a runtime class: this service has none", name)
	}
	return RuntimeClass{}, Invalidf("runtimeClass: %.128q is not a runtime class; the classes are %s", name, strings.Join(c.Names(), ", "))
}

// Names returns the names of the classes in their order. It is never nil.
func (c RuntimeClasses) Names() []string {
	names := make([]string, len(c))
	for i, class := range c {
		names[i] = class.Name
	}
	return names
}

// CheckPolicy returns an Error of KindInvalid when there is a policy, and sandboxes of the class
// have no egress sidecar that enforces it. An empty policy is refused too: the client expects an
// effect of it.
func (c RuntimeClass) CheckPolicy(policy *NetworkPolicy) error {
	if c.EgressSidecar || policy == nil {
		return nil
	}
	return Invalidf("networkPolicy: cannot be held for the runtime class %q, whose sandboxes have no egress sidecar (egress_sidecar of the class in runtime.classes)", c.Name)
}
