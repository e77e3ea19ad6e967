package e2b

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"sandbox.internal/execd/internal/identity"
)

// account is the user that a request acts as.
type account struct {
	identity.User
	directory string // where relative paths start
}

// usualName is the user of E2B's own templates. Clients of version 1 name it where their user names
// none.
const usualName = "user"

// accountOf returns the user that the request names: with Basic authentication (a name without a
// password), the user name given, or the template's default. That is also what a request gets that
// names the [usualName] of an image which has no such user.
func accountOf(r *http.Request, name string) (account, *failure) {
	if name == "" {
		name, _, _ = r.BasicAuth()
	}
	if name == usualName {
		if _, ok := identity.UserNamed(name); !ok {
			name = ""
		}
	}
	byDefault := name == ""
	if byDefault {
		name = r.Header.Get(DefaultUserHeader)
	}
	user, ok := identity.UserOf(uint32(os.Getuid()))
	if !ok {
		user = identity.User{Name: "root", UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Home: "/root"}
	}
	if name != "" {
		if user, ok = identity.UserNamed(name); !ok {
			return account{}, failf(codeUnauthenticated, "user %.128q: the sandbox has no such user", name)
		}
	}
	directory := user.Home
	if given := r.Header.Get(DefaultDirectoryHeader); given != "" && byDefault {
		directory = given
	}
	return account{user, directory}, nil
}

// path returns the absolute path that a client means: what is relative starts at the user's
// directory, and ~ is the user's home.
func (a account) path(name string) string {
	switch {
	case name == "~":
		name = a.Home
	case strings.HasPrefix(name, "~/"):
		name = filepath.Join(a.Home, name[2:])
	case !filepath.IsAbs(name):
		name = filepath.Join(a.directory, name)
	}
	return filepath.Clean(name)
}
