"""The programs of the OpenStack lab that run in its own interpreter
(``tests/labs/get-openstack.sh``); ``settings`` is plain Python and read by the tests as well."""
