"""What acts at sites, or records there. A new hook or log is a class in a file here;
when and where it acts isn't decided here.
"""
