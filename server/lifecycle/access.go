package lifecycle

// Role is what an API key allows.
type Role string

// The roles of a key.
const (
	RoleAdmin  Role = "admin"  // every sandbox, every action
	RoleUser   Role = "user"   // every action on the key's own sandboxes
	RoleViewer Role = "viewer" // reads every sandbox, changes none
)

// Principal is the holder of a key. The zero value may do nothing.
type Principal struct {
	Name string // of the API key; empty when no key is configured
	Role Role
}

// CanCreate returns an Error of KindForbidden unless the principal may create sandboxes.
func (p Principal) CanCreate() error {
	if p.Role == RoleAdmin || p.Role == RoleUser {
		return nil
	}
	return forbidden("API key %q has the role %s, which may not create sandboxes", p)
}

// CanRead returns an Error of KindForbidden unless the principal may look at a sandbox of that
// owner.
func (p Principal) CanRead(owner string) error {
	if p.Role == RoleAdmin || p.Role == RoleViewer || (p.Role == RoleUser && p.Name == owner) {
		return nil
	}
	return forbidden("API key %q with the role %s may not access a sandbox that another key created", p)
}

// CanUse returns an Error of KindForbidden unless the principal may change a sandbox of that owner
// or run something in it.
func (p Principal) CanUse(owner string) error {
	if p.Role == RoleViewer {
		return forbidden("API key %q has the role %s, which may only read", p)
	}
	return p.CanRead(owner)
}

// CanReadSnapshot returns an Error of KindForbidden unless the principal may look at a snapshot
// that the owner asked for.
func (p Principal) CanReadSnapshot(owner string) error {
	if p.CanRead(owner) == nil {
		return nil
	}
	return forbidden("API key %q with the role %s may not access a snapshot that another key asked for", p)
}

// CanUseSnapshot returns an Error of KindForbidden unless the principal may delete the snapshot, or
// begin a sandbox with it.
func (p Principal) CanUseSnapshot(owner string) error {
	if p.Role == RoleViewer {
		return p.CanUse(owner)
	}
	return p.CanReadSnapshot(owner)
}

// CanReadAll returns an Error of KindForbidden unless the principal may look at what concerns all
// sandboxes, whoever created them.
func (p Principal) CanReadAll() error {
	if p.Role == RoleAdmin || p.Role == RoleViewer {
		return nil
	}
	return forbidden("API key %q has the role %s, and this takes the role admin or viewer", p)
}

// CanAdminister returns an Error of KindForbidden unless the principal may change what all
// sandboxes share, such as images.
func (p Principal) CanAdminister() error {
	if p.Role == RoleAdmin {
		return nil
	}
	return forbidden("API key %q has the role %s, and this takes the role admin", p)
}

// ListScope returns the owner whose sandboxes alone the principal sees in a listing, nil for all.
func (p Principal) ListScope() *string {
	if p.Role == RoleAdmin || p.Role == RoleViewer {
		return nil
	}
	return &p.Name
}

func forbidden(format string, p Principal) *Error {
	return Forbiddenf(format, p.Name, p.Role)
}
