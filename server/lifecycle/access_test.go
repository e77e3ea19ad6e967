package lifecycle_test

import (
	"testing"

	"sandbox.internal/server/lifecycle"
)

func TestRoles(t *testing.T) {
	const everyOwner = "*"
	for name, test := range map[string]struct {
		who                             lifecycle.Principal
		create                          bool
		readOwn, readOther, readUnowned bool
		useOwn, useOther, useUnowned    bool
		sees                            string
	}{
		"admin": {
			who: lifecycle.Principal{Name: "me", Role: lifecycle.RoleAdmin}, create: true,
			readOwn: true, readOther: true, readUnowned: true, useOwn: true, useOther: true, useUnowned: true, sees: everyOwner,
		},
		"user":   {who: lifecycle.Principal{Name: "me", Role: lifecycle.RoleUser}, create: true, readOwn: true, useOwn: true, sees: "me"},
		"viewer": {who: lifecycle.Principal{Name: "me", Role: lifecycle.RoleViewer}, readOwn: true, readOther: true, readUnowned: true, sees: everyOwner},
		"no role": {
			who: lifecycle.Principal{Name: "me"}, sees: "me",
		},
		"unknown role": {who: lifecycle.Principal{Name: "me", Role: "root"}, sees: "me"},
		"zero value":   {who: lifecycle.Principal{}, sees: ""},
	} {
		t.Run(name, func(t *testing.T) {
			expectAllowed(t, "create", test.who.CanCreate(), test.create)
			expectAllowed(t, "read own", test.who.CanRead("me"), test.readOwn)
			expectAllowed(t, "read another's", test.who.CanRead("other"), test.readOther)
			expectAllowed(t, "read an unowned one", test.who.CanRead(""), test.readUnowned)
			expectAllowed(t, "use own", test.who.CanUse("me"), test.useOwn)
			expectAllowed(t, "use another's", test.who.CanUse("other"), test.useOther)
			expectAllowed(t, "use an unowned one", test.who.CanUse(""), test.useUnowned)
			sees := everyOwner
			if owner := test.who.ListScope(); owner != nil {
				sees = *owner
			}
			if sees != test.sees {
				t.Errorf("sees the sandboxes of %q, want %q", sees, test.sees)
			}
		})
	}
}

func expectAllowed(t *testing.T, action string, err error, allowed bool) {
	t.Helper()
	if !allowed {
		if err == nil {
			t.Errorf("may %s", action)
			return
		}
		expectError(t, err, lifecycle.KindForbidden, "API key")
	} else if err != nil {
		t.Errorf("may not %s: %v", action, err)
	}
}
