package dnsproxy

const (
	MaxConnections   = maxConnections
	MaxPerConnection = maxPerConnection
	MaxQuery         = maxQuery
	MaxAddresses     = maxAddresses
	TCPIdle          = tcpIdle
)
